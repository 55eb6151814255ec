// SPDX-License-Identifier: Apache-2.0
// HostMemory is memory that the ranks of one host share, in a group whose hosts are connected by a Wire. Data that only
// ranks of one host need goes through HostMemory and does not cross the wire.
//
// Threads: only the group's communication thread calls the functions of HostMemory; as an exception, any thread may
//   call interrupt().
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

// Hosts lists the ranks of each host of a group, in ascending order. The hosts are ordered by the lowest rank of
// each host.
struct Hosts {
  std::vector<std::vector<int>> ranks;
  std::size_t host = 0;   // the index of this rank's host
  std::size_t local = 0;  // this rank's place among the ranks of its host
  // The number of ranks on each host that send and receive data between hosts. `rails` equals the number of ranks of
  // the smallest host.
  std::size_t rails = 1;

  const std::vector<int>& neighbours() const { return ranks[host]; }
};
Hosts hosts_of(const rendezvous::Roster& roster, int rank);
// Returns true if the group has several hosts and some host has several ranks, so that a reduction that starts within
// each host sends less data between hosts.
bool has_hierarchy(const Hosts& hosts);
// Returns true if a reduction over each host's ranks and then over the hosts adds values in the same tree as a
// reduction over all ranks (comm/reduction.h). The result of keeps_rank_order() is true if ranks are numbered host by
// host, and all hosts have an equal number of ranks that is a power of two.
bool keeps_rank_order(const Hosts& hosts);
// Returns the ranks of other hosts with which this rank exchanges announcements and ranges of data. The returned list
// has one rank of each other host, but may have several ranks of a host that has more ranks than this host.
std::vector<int> ranks_of_rail(const Hosts& hosts);
// Returns a text about the hosts for messages, such as "2 hosts x 8 ranks" or "3 hosts x 1 to 3 ranks".
std::string describe(const Hosts& hosts);

// Returns the size in bytes of a rank's window, the shared memory through which a host's ranks exchange data from
// their private memory. The size is equal on every host. The windows of a host with up to 128 ranks have at most 32
// MiB together.
std::size_t window_bytes(const Hosts& hosts);

// HostMemory is the memory that the ranks of one host share. The parameter `local` is a rank's place among the ranks of
// its host. An arena has memory for each rank of the host.
class HostMemory {
 public:
  virtual ~HostMemory() = default;

  // Allocates an arena. All ranks of the host call allocate(), which blocks. Throws BackendUnavailable if a rank of the
  // host has no room for the arena, and Broken after any other failure or interrupt().
  virtual Arena allocate(std::size_t bytes) = 0;
  // Returns the arena of this rank in which `buffer` lies, and the buffer's offset in the arena. If `buffer` lies in no
  // arena, the returned ArenaOffset names no arena.
  virtual comm::ArenaOffset find(const ConstBufferView& buffer) = 0;
  virtual std::byte* address(std::size_t local, const comm::ArenaOffset& place) = 0;
  // Returns the window of rank `local`.
  virtual std::byte* window(std::size_t local) = 0;
  // Makes a running allocate(), and each later call of allocate(), throw Broken.
  virtual void interrupt() = 0;
  // op_headers(), counts() and host_status() return the memory of the host's tables (op_header_table.h,
  // segment_counts.h, host_status_table.h). Every rank of the host has formatted its part of each table.
  virtual std::byte* op_headers() = 0;
  virtual std::byte* counts() = 0;
  virtual std::byte* host_status() = 0;
  // Returns the eventfd files on which the ranks of the host sleep (doorbell.h), by place on the host.
  virtual std::span<const std::shared_ptr<const EventFd>> bell_files() = 0;
};

}  // namespace lockstep::wire
