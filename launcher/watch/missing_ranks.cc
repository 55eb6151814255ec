// SPDX-License-Identifier: Apache-2.0
#include "launcher/watch/missing_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "launcher/base/amounts.h"
#include "launcher/process/process_table.h"
#include "runtime/base/process_state.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {
namespace {

constexpr std::size_t kMostNamed = 8;

struct RegisteredRanks {
  std::set<int> seen = {};  // registered ranks, including those that have left
  int present = 0;
};

std::map<std::string, RegisteredRanks> registered_by_scope(std::span<const membership::MemberView> members,
                                                           int world_size) {
  std::map<std::string, RegisteredRanks> scopes;
  for (const auto& member : members) {
    if (member.info.world_size != world_size) continue;
    auto& scope = scopes[member.scope];
    scope.seen.insert(member.info.rank);
    if (member.state == membership::MemberState::present) ++scope.present;
  }
  return scopes;
}

// Returns the program behind wrappers: the first descendant of `started` that does not have exactly one child.
ProcessEntry program_behind(ProcessEntry started) {
  const auto below = descendants_of(started.pid);
  for (ProcessEntry entry = std::move(started);;) {
    const auto is_child = [&](const ProcessEntry& other) { return other.parent == entry.pid && other.alive(); };
    if (std::count_if(below.begin(), below.end(), is_child) != 1) return entry;
    entry = *std::find_if(below.begin(), below.end(), is_child);
  }
}

std::string doing(const ProcessEntry& entry) {
  switch (process_state(entry.pid)) {
    case ProcessState::stopped: return "is stopped (SIGSTOP or Ctrl-Z)";
    case ProcessState::traced: return "is held by a debugger";
    case ProcessState::gone: return "has just ended";
    case ProcessState::running:
    case ProcessState::unknown: break;
  }
  const std::string_view what = entry.state == 'R'   ? "runs its own code"
                                : entry.state == 'D' ? "waits for a disk or a device in its own code"
                                                     : "sleeps in its own code";
  return fmt::format("{} (state {}) and has not come to init_process_group", what, entry.state);
}

std::string describe(const RankProcess& rank) {
  if (rank.ending)
    return fmt::format("rank {} (pid {}) {} before it came", rank.rank, rank.pid, rank.ending->describe());
  const auto started = process_entry(rank.pid);
  if (!started) return fmt::format("rank {} (pid {}) has just ended", rank.rank, rank.pid);
  const auto program = program_behind(*started);
  return fmt::format("rank {} (pid {}, {}) {}", rank.rank, program.pid, program.name, doing(program));
}

}  // namespace

std::optional<MissingRanks::Report> MissingRanks::look(ObservedClock::Time now,
                                                       std::span<const membership::MemberView> members) {
  clock_.observe(now);
  std::optional<Report> report;
  const auto scopes = registered_by_scope(members, ranks_);
  std::erase_if(waits_, [&](const auto& wait) { return !scopes.contains(wait.first); });
  for (const auto& [name, scope] : scopes) {
    if (scope.present == 0 || static_cast<int>(scope.seen.size()) == ranks_) {
      waits_.erase(name);
      continue;
    }
    auto& wait = waits_.try_emplace(name, Wait{.since = clock_.elapsed(), .said = clock_.elapsed()}).first->second;
    if (report || clock_.elapsed() - wait.said < kInterval) continue;
    wait.said = clock_.elapsed();
    report = Report{.present = scope.present, .waited = clock_.elapsed() - wait.since};
    for (int rank = 0; rank < ranks_; ++rank) {
      if (!scope.seen.contains(rank)) report->missing.push_back(rank);
    }
  }
  return report;
}

std::vector<int> ended_before_they_came(int world_size, std::span<const membership::MemberView> members,
                                        std::span<const int> ended) {
  std::set<int> missed;
  for (const auto& [name, scope] : registered_by_scope(members, world_size)) {
    if (scope.present == 0) continue;
    for (const int rank : ended) {
      if (!scope.seen.contains(rank)) missed.insert(rank);
    }
  }
  return {missed.begin(), missed.end()};
}

std::string describe_missing(const MissingRanks::Report& report, const RankMap& hosts,
                             std::span<const RankProcess> ranks, std::span<const RankEnd> ended) {
  const auto describe_rank = [&](int number) {
    const auto is_it = [number](const auto& rank) { return rank.rank == number; };
    if (const auto own = std::find_if(ranks.begin(), ranks.end(), is_it); own != ranks.end()) return describe(*own);
    const auto end = std::find_if(ended.begin(), ended.end(), is_it);
    if (end == ended.end()) return fmt::format("rank {} of {}", number, describe_host(hosts, node_of(hosts, number)));
    return fmt::format("rank {} (host {}, pid {}) {} before it came", number, end->host, end->pid,
                       end->ending.describe());
  };
  return fmt::format("{} of {} {} waited for {:.0f} s in init_process_group; missing: {}", report.present,
                     count_of(world_size(hosts), "rank"), report.present == 1 ? "has" : "have",
                     std::chrono::duration<double>(report.waited).count(),
                     joined(report.missing, describe_rank, "; ", kMostNamed));
}

}  // namespace lockstep::launcher
