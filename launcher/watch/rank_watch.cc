// SPDX-License-Identifier: Apache-2.0
#include "launcher/watch/rank_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace lockstep::launcher {
namespace {

using membership::MemberState;
using membership::MemberView;

// Returns the pid of `rank` as a member, if that pid is valid in this namespace; else 0.
pid_t member_pid(const std::vector<MemberView>& members, int rank) {
  static const auto self = membership::ProcessInfo::of_this_process();
  const auto found = std::find_if(members.begin(), members.end(), [&](const MemberView& member) {
    return member.info.rank == rank && member.state == MemberState::present &&
           self.shares_pids_with(member.info.process);
  });
  return found == members.end() ? 0 : found->info.process.pid;
}

}  // namespace

RankWatch::RankWatch(Options options)
    : options_(std::move(options)), stopped_(2 * kLook), missing_(world_size(options_.hosts), 2 * kLook) {}

std::vector<RankWatch::Finding> RankWatch::look(std::span<const RankProcess> ranks, std::span<const RankEnd> ended,
                                                std::chrono::steady_clock::time_point now) {
  std::vector<Finding> findings;
  const auto members = options_.members ? options_.members() : Members{};
  stopped_.observe(now);
  for (const auto& rank : ranks) {
    if (rank.running()) look_for_stopped(rank, members, findings);
  }
  look_for_ended(ended, members, findings);
  if (const auto report = missing_.look(now, members)) {
    findings.push_back({.text = describe_missing(*report, options_.hosts, ranks, ended)});
  }
  live_.look(members);
  if (!options_.names_slow) return findings;
  if (const auto slow = slow_.look(live_.straggler(SlowRank::kLeast), now); !slow.empty()) {
    findings.push_back({.text = slow});
  }
  return findings;
}

void RankWatch::look_for_ended(std::span<const RankEnd> ended, const Members& members,
                               std::vector<Finding>& findings) const {
  std::vector<int> numbers;
  for (const RankEnd& rank : ended) numbers.push_back(rank.rank);
  for (const int missed : ended_before_they_came(world_size(options_.hosts), members, numbers)) {
    const RankEnd& rank = *std::ranges::find(ended, missed, &RankEnd::rank);
    findings.push_back({.cause = Cause{.kind = Cause::Kind::left,
                                       .rank = missed,
                                       .host = rank.host,
                                       .pid = rank.pid,
                                       .text = fmt::format("rank {} (host {}, pid {}) {} before it came to "
                                                           "init_process_group, where others wait for it",
                                                           missed, rank.host, rank.pid, rank.ending.describe())}});
  }
}

void RankWatch::look_for_stopped(const RankProcess& rank, const Members& members, std::vector<Finding>& findings) {
  const auto process = find_stopped(rank.pid, member_pid(members, rank.rank));
  const auto news = stopped_.see(rank.rank, process.has_value());
  const std::string who = fmt::format("rank {} (host {}, pid {})", rank.rank, options_.host, rank.pid);
  if (news == StoppedRanks::News::goes_on) findings.push_back({.text = fmt::format("{} continues", who)});
  if (news != StoppedRanks::News::stopped || !process) return;
  auto text = describe_stop(who, rank.pid, *process, stopped_.stopped_for(rank.rank), options_.end_stopped);
  if (options_.end_stopped) {
    findings.push_back({.cause = Cause{.kind = Cause::Kind::silent,
                                       .rank = rank.rank,
                                       .host = options_.host,
                                       .pid = process->pid,
                                       .signal = process->signal,
                                       .text = std::move(text)}});
  } else {
    findings.push_back({.text = std::move(text)});
  }
}

}  // namespace lockstep::launcher
