// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/roster_cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/base/printable.h"

namespace lockstep::comm {
namespace {

// A longer list would crowd out the text, which is cut to fit into a frame.
constexpr std::size_t kMostListed = 32;

std::string describe_group(const rendezvous::Roster& roster) {
  std::vector<int> ranks;
  for (const rendezvous::Member& member : roster) ranks.push_back(member.rank);
  std::sort(ranks.begin(), ranks.end());
  return fmt::format(
      "group '{}' ({})", printable(roster.front().group),
      ranks.size() > kMostListed ? fmt::format("{} ranks", ranks.size()) : rendezvous::describe_ranks(ranks));
}

}  // namespace

Cause cause_about(const rendezvous::Roster& roster, Cause::Kind kind, int rank, int reporter, std::string text,
                  std::int64_t sequence) {
  Cause cause{.kind = kind,
              .rank = job_rank(roster, rank),
              .reporter = job_rank(roster, reporter),
              .sequence = sequence,
              .text = named_by_group(roster, std::move(text))};
  if (rank < 0) return cause;
  const rendezvous::Member& member = roster[static_cast<std::size_t>(rank)];
  cause.host = member.host;
  cause.pid = member.pid;
  return cause;
}

int job_rank(const rendezvous::Roster& roster, int rank) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= roster.size()) return rank;
  return roster[static_cast<std::size_t>(rank)].rank;
}

std::optional<int> rank_in(const rendezvous::Roster& roster, int of_job) {
  const auto found = std::ranges::find(roster, of_job, &rendezvous::Member::rank);
  if (of_job < 0 || found == roster.end()) return std::nullopt;
  return static_cast<int>(found - roster.begin());
}

std::string named_by_group(const rendezvous::Roster& roster, std::string text) {
  if (roster.empty() || roster.front().group.empty()) return text;
  const std::string scope = describe_group(roster) + ": ";
  return text.starts_with(scope) ? text : scope + text;
}

}  // namespace lockstep::comm
