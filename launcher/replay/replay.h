// SPDX-License-Identifier: Apache-2.0
// `lockstep replay A B -- PROGRAM`: runs the program again from snapshot A to the step of snapshot B, and says whether
// it comes to the same bits.
//
// The program runs in a folder of its own, which a link to A makes a folder of snapshots; LOCKSTEP_REPLAY tells the
// program's Snapshots of it (runtime/snapshot/replay_request.h). Nothing is written to the folders of A and B.
#pragma once

#include <functional>

#include "launcher/flags/command_line.h"

namespace lockstep::launcher {

// Prints to stdout. `run` starts the job and returns its exit code. Returns 0 if the bits are the same, 1 if they
// differ, and 2, after a message, if A or B can't be read or the program fails or does not come to the step of B. Call
// it while the process has one thread.
int replay_command(const ReplayOptions& options, const std::function<int(const RunOptions&)>& run);

}  // namespace lockstep::launcher
