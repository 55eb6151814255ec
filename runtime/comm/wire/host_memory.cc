// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/host_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace lockstep::wire {

Hosts hosts_of(const rendezvous::Roster& roster, int rank) {
  Hosts hosts;
  for (int r = 0; r < static_cast<int>(roster.size()); ++r) {
    const std::vector<int> beside = rendezvous::ranks_beside(roster, r);
    if (beside.front() == r) hosts.ranks.push_back(beside);
  }
  hosts.rails = roster.size();
  for (std::size_t host = 0; host < hosts.ranks.size(); ++host) {
    const auto& ranks = hosts.ranks[host];
    hosts.rails = std::min(hosts.rails, ranks.size());
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    if (found == ranks.end()) continue;
    hosts.host = host;
    hosts.local = static_cast<std::size_t>(found - ranks.begin());
  }
  return hosts;
}

bool has_hierarchy(const Hosts& hosts) {
  return hosts.ranks.size() > 1 && std::ranges::any_of(hosts.ranks, [](const auto& ranks) { return ranks.size() > 1; });
}

std::size_t window_bytes(const Hosts& hosts) {
  std::size_t most = 1;
  for (const auto& ranks : hosts.ranks) most = std::max(most, ranks.size());
  constexpr std::size_t kAlignment = 4096;  // a page
  return std::clamp<std::size_t>((32u << 20) / most / kAlignment * kAlignment, 256 << 10, 4 << 20);
}

bool keeps_rank_order(const Hosts& hosts) {
  const std::size_t each = hosts.ranks.front().size();
  int next = 0;
  for (const std::vector<int>& ranks : hosts.ranks) {
    if (ranks.size() != each || !std::has_single_bit(each)) return false;
    for (const int rank : ranks) {
      if (rank != next++) return false;
    }
  }
  return true;
}

std::vector<int> ranks_of_rail(const Hosts& hosts) {
  std::vector<int> result;
  const std::size_t own = hosts.neighbours().size();
  for (std::size_t host = 0; host < hosts.ranks.size(); ++host) {
    const std::vector<int>& theirs = hosts.ranks[host];
    for (std::size_t i = 0; host != hosts.host && i < theirs.size(); ++i) {
      if (i % own == hosts.local || hosts.local % theirs.size() == i) result.push_back(theirs[i]);
    }
  }
  return result;
}

std::string describe(const Hosts& hosts) {
  std::size_t most = 0;
  for (const auto& ranks : hosts.ranks) most = std::max(most, ranks.size());
  const std::string fewest = hosts.rails == most ? "" : fmt::format("{} to ", hosts.rails);
  return fmt::format("{} hosts x {}{} ranks", hosts.ranks.size(), fewest, most);
}

}  // namespace lockstep::wire
