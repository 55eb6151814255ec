// SPDX-License-Identifier: Apache-2.0
// Exit codes of the launcher's own, as shells have them. Those of ranks: runtime/job/exit_code.h.
#pragma once

namespace lockstep::launcher {

inline constexpr int kExitInternal = 1;         // the launcher itself can't continue: a system call failed
inline constexpr int kExitUsage = 2;            // the command line is wrong, or asks for what isn't here
inline constexpr int kExitNoProgress = 77;      // --max-restarts: starts in a row have done no new step
inline constexpr int kExitNotExecutable = 126;  // PROGRAM is there and can't be run
inline constexpr int kExitNotFound = 127;       // PROGRAM is not there

}  // namespace lockstep::launcher
