// SPDX-License-Identifier: Apache-2.0
// Which ranks of a job run on which host. Pure.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

// Agents' numbers are below it (membership::kMaxWorldSize).
inline constexpr int kMostAgents = 32768;

// The ranks of one host have consecutive numbers.
struct HostSlots {
  std::string name = {};
  int first_rank = 0;
  int ranks = 1;
  int agent = 0;  // its launcher's number at the job's store, which no other one ever has

  bool has(int rank) const { return rank >= first_rank && rank < first_rank + ranks; }
};

// By node rank, from 0.
using RankMap = std::vector<HostSlots>;

// `hosts` with their `ranks`, of which first_rank is filled in.
RankMap with_first_ranks(RankMap hosts);
int world_size(const RankMap& hosts);
// The node rank of the host that `rank` runs on; -1 if there is none.
int node_of(const RankMap& hosts, int rank);
// "host a (node rank 0)".
std::string describe_host(const RankMap& hosts, int node);

}  // namespace lockstep::launcher
