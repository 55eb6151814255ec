// SPDX-License-Identifier: Apache-2.0
// Memory that the ranks of one host share, for a group over a wire: data that only they need does not travel.
//
// Threads: the group's communication thread, except interrupt(): any.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/rendezvous/roster.h"
#include "runtime/base/event_fd.h"
#include "runtime/comm/transfer.h"

namespace lockstep::wire {

// The ranks of each host, in order; hosts are in the order of their lowest ranks.
struct Hosts {
  std::vector<std::vector<int>> ranks;
  std::size_t host = 0;   // this rank's host
  std::size_t local = 0;  // this rank's place among the ranks of its host
  // The number of ranks of every host that carry the data between hosts: the smallest host's number of ranks.
  std::size_t rails = 1;

  const std::vector<int>& neighbours() const { return ranks[host]; }
};
Hosts hosts_of(const rendezvous::Roster& roster, int rank);
// Whether a hierarchy sends less over the wire: several hosts, at least one of them with several ranks.
bool has_hierarchy(const Hosts& hosts);
// Whether the tree over each host's ranks, and then over the hosts, is the tree over all ranks (comm/reduction.h):
// ranks are numbered host by host, with the same power of two on each.
bool keeps_rank_order(const Hosts& hosts);
// The ranks of other hosts with which this one exchanges announcements and shares: one of each other host, and more of
// a host that has more ranks than this one.
std::vector<int> counterparts(const Hosts& hosts);
// A text for messages: "2 hosts x 8 ranks", "3 hosts x 1 to 3 ranks".
std::string describe(const Hosts& hosts);

// The size of a rank's window in bytes, through which its host gets memory of the program's own: the same on every
// host, and at most 32 MiB on a host of up to 128 ranks.
std::size_t window_bytes(const Hosts& hosts);

// The shared memory of one host. `local` is a rank's place among the ranks of its host, and `arena` the memory of each
// rank, by place.
class HostMemory {
 public:
  virtual ~HostMemory() = default;

  // Collective over the host's ranks, and blocks. Throws BackendUnavailable if one of them has no room, Broken.
  virtual Arena allocate(std::size_t bytes) = 0;
  // The buffer's place in an arena of this rank; no arena if it is the user's own memory.
  virtual comm::ArenaOffset find(const ConstBufferView& buffer) = 0;
  virtual std::byte* address(std::size_t local, const comm::ArenaOffset& place) = 0;
  // A rank's window.
  virtual std::byte* window(std::size_t local) = 0;
  // Ends allocate(), and each later call.
  virtual void interrupt() = 0;
  // The memory of the host's op_header_table.h, of its segment_counts.h and of its host_status_table.h, of which every
  // rank has formatted its part.
  virtual std::byte* op_headers() = 0;
  virtual std::byte* counts() = 0;
  virtual std::byte* host_status() = 0;
  // The files that the ranks of the host sleep on (doorbell.h).
  virtual std::span<const std::shared_ptr<const EventFd>> bell_files() = 0;
};

}  // namespace lockstep::wire
