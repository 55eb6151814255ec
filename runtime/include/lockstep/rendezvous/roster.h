// SPDX-License-Identifier: Apache-2.0
// The members of the job: exchanged once, through the store, when the ranks meet.
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
  std::string host;          // host name, for people
  std::string boot_id;       // equal on two members exactly if they share a kernel
  std::string network = {};  // of members that share a kernel: equal exactly if they share a network (base/host.h)
  std::string group = {};    // name of the part of the job's group that the roster is of; empty: the job's group

  // A host is where processes reach each other over loopback and can share memory: one kernel and one network. Two
  // containers of one machine are two hosts, unless they were given one network.
  bool beside(const Member& other) const { return boot_id == other.boot_id && network == other.network; }

  // "rank 2 (host node7, pid 4711)", for messages.
  std::string describe() const;
};

// Index is the rank in the group whose roster it is; a member of a part of another group keeps the name that it has
// there.
using Roster = std::vector<Member>;

// "rank 2", "ranks 0, 2 and 3", "ranks 4-7": for messages. `ranks` are ascending.
LOCKSTEP_API std::string describe_ranks(std::span<const int> ranks);
// "rank 0 (host a, pid 1), rank 1 (host a, pid 2)": the members at `ranks`, at most a dozen of them.
LOCKSTEP_API std::string describe_members(const Roster& roster);

// How many hosts the roster spans, and who is where: "node1: ranks 0-1; node2: ranks 2-3".
LOCKSTEP_API int count_hosts(const Roster& roster);
LOCKSTEP_API std::string describe_hosts(const Roster& roster);

// Ranks of the roster's group on `rank`'s host, in order. In the job's group its place among them is its local rank,
// unless its launcher said another.
LOCKSTEP_API std::vector<int> ranks_beside(const Roster& roster, int rank);
// Index of rank's host, in order of the lowest rank on each.
LOCKSTEP_API int host_index(const Roster& roster, int rank);

}  // namespace lockstep::rendezvous
