// SPDX-License-Identifier: Apache-2.0
// The assignment of a job's ranks to its hosts. Pure.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

// Upper limit of agents' numbers, exclusive (membership::kMaxWorldSize).
inline constexpr int kMostAgents = 32768;

// A host of a job and its ranks, which have consecutive numbers.
struct HostSlots {
  std::string name = {};
  int first_rank = 0;
  int ranks = 1;
  int agent = 0;  // unique number of its launcher at the job's store, which is never reused

  bool has(int rank) const { return rank >= first_rank && rank < first_rank + ranks; }
};

// Hosts by node rank, from 0.
using RankMap = std::vector<HostSlots>;

// Returns `hosts`, whose `ranks` are set, with first_rank filled in.
RankMap with_first_ranks(RankMap hosts);
int world_size(const RankMap& hosts);
// Returns the node rank of the host on which `rank` runs; -1 if there is none.
int node_of(const RankMap& hosts, int rank);
// Returns "host a (node rank 0)".
std::string describe_host(const RankMap& hosts, int node);

}  // namespace lockstep::launcher
