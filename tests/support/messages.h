// SPDX-License-Identifier: Apache-2.0
// Whole messages, which read as a page: those of a room are in tests/messages/ROOM.txt. A test run with
// LOCKSTEP_UPDATE_MESSAGES=1 writes there what it was told; read the difference before you commit it.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::testing {

// `said` is the text of `what` of this test in tests/messages/`room`.txt, without blanks at the end of a line, and with
// what differs from run to run taken out: "(host n1, pid 4711)" is "(...)" there, "elapsed 3.1 s" "elapsed T s",
// "127.0.0.1:4711" "127.0.0.1:PORT", a TemporaryFolder "FOLDER". A failure is one of the line that calls.
void expect_message(std::string_view room, std::string_view what, const std::string& said,
                    const char* file = __builtin_FILE(), int line = __builtin_LINE());

}  // namespace lockstep::testing
