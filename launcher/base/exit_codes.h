// SPDX-License-Identifier: Apache-2.0
// Exit codes of the launcher itself, as shells use them. runtime/job/exit_code.h has the exit codes of ranks.
#pragma once

namespace lockstep::launcher {

inline constexpr int kExitInternal = 1;  // the launcher itself can't continue: a system call failed
// the command line is wrong, or asks for something that this host or build lacks
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNoProgress = 77;      // --max-restarts: consecutive starts have finished no new step
inline constexpr int kExitNotExecutable = 126;  // PROGRAM exists and can't be executed
inline constexpr int kExitNotFound = 127;       // PROGRAM does not exist

}  // namespace lockstep::launcher
