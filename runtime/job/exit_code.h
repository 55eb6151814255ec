// SPDX-License-Identifier: Apache-2.0
// Numbers that mean something between a rank and its launcher: exit codes, and one of a Cause.
#pragma once

#include <cerrno>

#include "lockstep/base/environment.h"

namespace lockstep {

// A rank whose uncaught error was PeerLost: another rank failed first. `lockstep run` keeps looking for that rank
// before it names the cause. EX_TEMPFAIL of sysexits.h: nothing is wrong here, a new attempt may succeed.
inline constexpr int kExitPeerLost = 75;

// A rank whose group had failed and whose GPU library did not come back from being aborted: its watchdog has ended it
// (comm/nccl/shutdown.h). The cause, and the group's last operation, are in its log.
inline constexpr int kExitAbortBlocked = 76;

// A rank whose program returned exit_code() after the ranks had stopped for a signal (comm/stop.h), unless
// LOCKSTEP_REQUEUE_EXIT_CODE says another. It equals kExitPeerLost, for it means the same to a scheduler that starts
// the job again; the launcher tells them apart by the ranks' reports.
inline constexpr int kExitRequeue = kExitPeerLost;
// Cause::error_number of ranks that can't resume, on which they agree: files are on the disk of a host that is not
// among theirs. A start with more hosts may succeed.
inline constexpr int kHostAbsent = EHOSTDOWN;
// Cause::error_number of the ranks if an audit has found that a rank computes wrong values (ddp/auditor.h).
inline constexpr int kHostComputesWrong = EUCLEAN;
// Above it shells have codes of their own.
inline constexpr int kMostRequeueCode = 125;
// InvalidArgument if the variable is not a code from 1 to kMostRequeueCode.
int requeue_exit_code(const Environment& environment);

}  // namespace lockstep
