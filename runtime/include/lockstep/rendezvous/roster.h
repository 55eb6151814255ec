// SPDX-License-Identifier: Apache-2.0
// The roster lists the members of the job; the ranks exchange it once, through the store, when they meet.
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
  std::string host;     // host name, for people
  std::string boot_id;  // equal on two members exactly if they share a kernel
  // The network (base/host.h): two members that share a kernel share a network exactly if it is equal.
  std::string network = {};
  std::string group = {};  // name of the group whose roster this is in; empty: the job's group

  // Whether both members are on one host, where processes reach each other over loopback and can share memory: one
  // kernel and one network. Two containers of one machine are two hosts, unless they share a network.
  bool beside(const Member& other) const { return boot_id == other.boot_id && network == other.network; }

  // The member in messages: "rank 2 (host node7, pid 4711)".
  std::string describe() const;
};

// The members of a group, by rank in the group. A member of a group made by another one keeps its job's rank in
// Member::rank.
using Roster = std::vector<Member>;

// A text for messages: "rank 2", "ranks 0, 2 and 3", "ranks 4-7". `ranks` are ascending.
LOCKSTEP_API std::string describe_ranks(std::span<const int> ranks);
// A text for messages: "rank 0 (host a, pid 1), rank 1 (host a, pid 2)", at most a dozen members.
LOCKSTEP_API std::string describe_members(const Roster& roster);

// The number of hosts in the roster, and a text of which ranks are where: "node1: ranks 0-1; node2: ranks 2-3".
LOCKSTEP_API int count_hosts(const Roster& roster);
LOCKSTEP_API std::string describe_hosts(const Roster& roster);

// The ranks of the roster's group on `rank`'s host, in order. In the job's group the position of `rank` among them is
// its local rank, unless its launcher set another.
LOCKSTEP_API std::vector<int> ranks_beside(const Roster& roster, int rank);
// The index of `rank`'s host among the hosts, in the order of their lowest ranks.
LOCKSTEP_API int host_index(const Roster& roster, int rank);

}  // namespace lockstep::rendezvous
