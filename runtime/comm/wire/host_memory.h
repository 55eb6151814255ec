// SPDX-License-Identifier: Apache-2.0
// HostMemory is memory that the ranks of one host share in a group over a wire. Data that only these ranks need does
// not cross the wire.
//
// Threads: the group's communication thread calls all functions except interrupt(), which any thread may call.
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

// Hosts lists the ranks of each host in order. The hosts are in the order of their lowest ranks.
struct Hosts {
  std::vector<std::vector<int>> ranks;
  std::size_t host = 0;   // the index of this rank's host
  std::size_t local = 0;  // this rank's place among the ranks of its host
  // The number of ranks of every host that carry data between hosts, which is the smallest host's number of ranks.
  std::size_t rails = 1;

  const std::vector<int>& neighbours() const { return ranks[host]; }
};
Hosts hosts_of(const rendezvous::Roster& roster, int rank);
// Returns whether a hierarchy sends less over the wire: if there are several hosts, and some host has several ranks.
bool has_hierarchy(const Hosts& hosts);
// Returns whether the tree over each host's ranks, and then over the hosts, is the tree over all ranks
// (comm/reduction.h). The trees are equal if ranks are numbered host by host, with the same power of two of ranks on
// each host.
bool keeps_rank_order(const Hosts& hosts);
// Returns the ranks of other hosts with which this rank exchanges announcements and shares. Each other host has one
// such rank, and a host with more ranks than this host may have several such ranks.
std::vector<int> counterparts(const Hosts& hosts);
// Returns a text for messages: "2 hosts x 8 ranks", "3 hosts x 1 to 3 ranks".
std::string describe(const Hosts& hosts);

// Returns the size in bytes of a rank's window, through which the host's ranks exchange data of the program's private
// memory. The size is equal on every host. Together the windows of a host of up to 128 ranks have at most 32 MiB.
std::size_t window_bytes(const Hosts& hosts);

// HostMemory is the shared memory of one host. The parameter `local` is a rank's place among the ranks of its host. An
// arena has memory for each of these ranks.
class HostMemory {
 public:
  virtual ~HostMemory() = default;

  // Allocates an arena. All ranks of the host call allocate(), which blocks. Throws BackendUnavailable if a rank has no
  // room, or Broken.
  virtual Arena allocate(std::size_t bytes) = 0;
  // Returns the buffer's place in an arena of this rank. The place has no arena if the buffer is the user's own memory.
  virtual comm::ArenaOffset find(const ConstBufferView& buffer) = 0;
  virtual std::byte* address(std::size_t local, const comm::ArenaOffset& place) = 0;
  // Returns the window of rank `local`.
  virtual std::byte* window(std::size_t local) = 0;
  // Ends a running allocate() and each later call.
  virtual void interrupt() = 0;
  // Return the memory of the host's tables in op_header_table.h, segment_counts.h and host_status_table.h. Every rank
  // has formatted its part of each table.
  virtual std::byte* op_headers() = 0;
  virtual std::byte* counts() = 0;
  virtual std::byte* host_status() = 0;
  // Returns the files that the ranks of the host sleep on (doorbell.h).
  virtual std::span<const std::shared_ptr<const EventFd>> bell_files() = 0;
};

}  // namespace lockstep::wire
