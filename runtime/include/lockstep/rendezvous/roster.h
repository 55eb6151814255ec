// SPDX-License-Identifier: Apache-2.0
// Roster lists the members of a job; each process of the job is a member. When the ranks of a job first meet, the ranks
// exchange the roster once, through the key-value store.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep::rendezvous {

struct LOCKSTEP_API Member {
  int rank = 0;
  int local_rank = 0;
  int pid = 0;
  std::string host;     // name of the host, for people
  std::string boot_id;  // equal for two members exactly if they share a kernel
  // The name of the member's network (base/host.h). Two members that share a kernel also share a network if and only if
  // their values of `network` are equal.
  std::string network = {};
  std::string group = {};  // name of the group that this roster belongs to; empty: the job's group

  // Returns whether both members are on one host, which means that they share one kernel and one network. Processes on
  // one host can reach each other over loopback, and can share memory. Two containers on one machine count as two
  // hosts, unless they share a network.
  bool beside(const Member& other) const { return boot_id == other.boot_id && network == other.network; }

  // Returns the member's text for messages: "rank 2 (host node7, pid 4711)".
  std::string describe() const;
};

// Roster holds the members of a group, indexed by their rank in the group. Member::rank is always the rank in the whole
// job, even if the roster's group was made from another group.
using Roster = std::vector<Member>;

// Returns a text for messages, such as "rank 2", "ranks 0, 2 and 3" or "ranks 4-7". `ranks` must be ascending.
LOCKSTEP_API std::string describe_ranks(std::span<const int> ranks);
// Returns a text for messages, such as "rank 0 (host a, pid 1), rank 1 (host a, pid 2)". The text describes at most a
// dozen of the roster's members.
LOCKSTEP_API std::string describe_members(const Roster& roster);

// count_hosts() returns the number of hosts in the roster, and describe_hosts() returns a text with the ranks of each
// host, such as "node1: ranks 0-1; node2: ranks 2-3".
LOCKSTEP_API int count_hosts(const Roster& roster);
LOCKSTEP_API std::string describe_hosts(const Roster& roster);

// Returns the ranks of the roster's group that run on the same host as `rank`, in ascending order. In the group of the
// whole job, the position of `rank` in the returned list is the local rank of `rank`, unless the launcher has set
// another local rank.
LOCKSTEP_API std::vector<int> ranks_beside(const Roster& roster, int rank);
// Returns the index of the host on which `rank` runs; hosts are numbered in the order of their lowest ranks.
LOCKSTEP_API int host_index(const Roster& roster, int rank);

}  // namespace lockstep::rendezvous
