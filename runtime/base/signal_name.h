// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

// "SIGTERM"; "signal 77" if it has no name.
std::string signal_name(int signal);

}  // namespace lockstep
