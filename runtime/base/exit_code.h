// SPDX-License-Identifier: Apache-2.0
// Exit codes that mean something between a rank and its launcher.
#pragma once

namespace lockstep {

// A rank whose uncaught error was PeerLost: another rank failed first. `lockstep run` looks on for that one before it
// says who did. EX_TEMPFAIL of sysexits.h: nothing is wrong here, a new attempt may do.
inline constexpr int kExitPeerLost = 75;

// A rank whose group had failed and whose GPU library did not come back from being aborted: its watchdog has ended it
// (comm/nccl/shutdown.h). The cause, and what the group did last, are in its log.
inline constexpr int kExitAbortBlocked = 76;

}  // namespace lockstep
