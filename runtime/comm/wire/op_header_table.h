// SPDX-License-Identifier: Apache-2.0
// The announcements of all ranks, each the header of a collective's operation, in memory that the ranks of one host
// share: an announcement that one rank of a host has got need not be sent to its neighbours.
//
// Every rank's announcements reach a host through one of its ranks, their relay. A host's own ranks carry their own;
// those of another host's l-th rank are carried by this host's l-th (modulo its ranks). So a rank sends an announcement
// to one rank of each other host. The relay puts it on the table; the relay of a collective's last announcement rings
// for all ranks of the host, so each wakes once for a collective.
//
// A slot is used again after kSlots collectives. No rank still reads it then: a rank announces a collective at most
// kAhead after the last whose announcements it has read, all of them. So after one rank announces n, all have announced
// n - kAhead, and all have read those of n - kSlots.
//
// Words are stored with release after the memory that they stand for, and read with acquire before it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/comm/wire/doorbell.h"
#include "runtime/comm/wire/frame.h"
#include "runtime/comm/wire/host_memory.h"

namespace lockstep::wire {

class OpHeaderTable {
 public:
  static constexpr std::uint64_t kAhead = 32;
  static constexpr std::uint64_t kSlots = 2 * kAhead;

  // The size of the memory for the table of this rank's host.
  static std::size_t bytes_for(const Hosts& hosts);
  // Formats this rank's part of the table, in memory of zeros: before any rank of the host uses it.
  static void format(std::byte* memory, const Hosts& hosts);

  // `memory` outlives it. `bell_files` are the files that the ranks of the host sleep on, by place.
  OpHeaderTable(std::byte* memory, const Hosts& hosts, std::span<const std::shared_ptr<const EventFd>> bell_files);

  // This rank's bell, and those of all ranks of the host by place.
  DoorbellWords& bell() const { return *bells_[local_].words; }
  const std::vector<DoorbellButton>& bells() const { return bells_; }
  // The ranks that carry this rank's announcements on the other hosts.
  const std::vector<int>& relay_ranks() const { return relay_ranks_; }
  // The ranks whose announcements other ranks of this host carry.
  const std::vector<int>& relayed_by_others() const { return relayed_by_others_; }
  bool is_relay_of(int rank) const { return relay_[static_cast<std::size_t>(rank)] == local_; }
  // Removes from `absent`, which is in order, ranks of other hosts whose relay is in it and is another rank: if the
  // relay is suspended, no announcement of theirs arrives. Returns the removed ranks.
  std::vector<int> take_unheard(std::vector<int>& absent) const;
  // Puts up the announcement of collective `number` of a rank that this one carries, the rank's next. One thread for
  // each such rank. The engine notes it afterwards: until then this rank can't announce a collective whose announcement
  // would take the slot.
  void post(int rank, std::uint64_t number, std::span<const std::byte> frame);
  // The announcement of collective `number`, the rank's next, if it is up. Its payload stays on the table until this
  // rank announces the collective kSlots later.
  std::optional<Frame> read(int rank, std::uint64_t number) const;
  // The time when an announcement that read() returned was put up.
  std::chrono::steady_clock::time_point time_of(int rank, std::uint64_t number) const;

 private:
  struct Slot;
  struct Count;

  Slot& slot(int rank, std::uint64_t number) const;

  const std::size_t ranks_;  // of all hosts
  const std::size_t local_;
  const std::vector<int> neighbours_;  // the ranks of this host
  std::vector<DoorbellButton> bells_;  // by place on the host
  std::vector<Slot*> slots_;           // by rank
  std::vector<std::size_t> relay_;     // by rank: its place on the host
  Count* counts_;                      // by number modulo kSlots
  std::vector<int> relay_ranks_;
  std::vector<int> relayed_by_others_;
};

}  // namespace lockstep::wire
