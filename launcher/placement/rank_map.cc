// SPDX-License-Identifier: Apache-2.0
#include "launcher/placement/rank_map.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::launcher {

RankMap with_first_ranks(RankMap hosts) {
  int next = 0;
  for (HostSlots& host : hosts) {
    host.first_rank = next;
    next += host.ranks;
  }
  return hosts;
}

int world_size(const RankMap& hosts) { return hosts.empty() ? 0 : hosts.back().first_rank + hosts.back().ranks; }

int node_of(const RankMap& hosts, int rank) {
  const auto found = std::find_if(hosts.begin(), hosts.end(), [rank](const auto& host) { return host.has(rank); });
  return found == hosts.end() ? -1 : static_cast<int>(found - hosts.begin());
}

std::string describe_host(const RankMap& hosts, int node) {
  return fmt::format("host {} (node rank {})", hosts[static_cast<std::size_t>(node)].name, node);
}

}  // namespace lockstep::launcher
