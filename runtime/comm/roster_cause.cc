// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/roster_cause.h"

#include <utility>

namespace lockstep::comm {

Cause cause_about(const rendezvous::Roster& roster, Cause::Kind kind, int rank, int reporter, std::string text,
                  std::int64_t sequence) {
  Cause cause{.kind = kind, .rank = rank, .reporter = reporter, .sequence = sequence, .text = std::move(text)};
  if (rank < 0) return cause;
  const rendezvous::Member& member = roster[static_cast<std::size_t>(rank)];
  cause.host = member.host;
  cause.pid = member.pid;
  return cause;
}

}  // namespace lockstep::comm
