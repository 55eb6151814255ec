// SPDX-License-Identifier: Apache-2.0
// The announcements of all ranks, each the header of a collective's operation, in memory that the ranks of one host
// share: what one rank of a host has been told of a collective need not be sent to its neighbours.
//
// Every rank's announcements come to a host through one of its ranks, their relay: those of its own ranks are carried
// by themselves, those of another host's l-th rank by this host's l-th (modulo its ranks). So a rank sends an
// announcement to one rank of each other host. The relay puts it on the table; the rank that puts up the last one of
// a collective rings for all ranks of the host, so that each wakes once for a collective.
//
// A slot is used again after kSlots collectives. Nobody is still reading it then: a rank announces a collective no more
// than kAhead after the last whose announcements it has read, all of them. So once one rank announces n, all have
// announced n - kAhead, and all have read those of n - kSlots.
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

  // Memory that the table of this rank's host takes.
  static std::size_t bytes_for(const Hosts& hosts);
  // Starts the life of this rank's part of it, in memory of zeros: before any rank of the host uses the table.
  static void format(std::byte* memory, const Hosts& hosts);

  // `memory` outlives it. `bell_files`: what the ranks of the host sleep on, by their places.
  OpHeaderTable(std::byte* memory, const Hosts& hosts, std::span<const std::shared_ptr<const EventFd>> bell_files);

  // This rank's, and those of all ranks of the host by their places.
  DoorbellWords& bell() const { return *bells_[local_].words; }
  const std::vector<DoorbellButton>& bells() const { return bells_; }
  // The ranks that carry this rank's announcements on the other hosts.
  const std::vector<int>& relay_ranks() const { return relay_ranks_; }
  // The ranks whose announcements the other ranks of this host carry.
  const std::vector<int>& relayed_by_others() const { return relayed_by_others_; }
  bool is_relay_of(int rank) const { return relay_[static_cast<std::size_t>(rank)] == local_; }
  // Takes those of other hosts out of `absent`, which is in order, whose relay is in it and is another rank: if that
  // one stands still it tells nobody of them.
  std::vector<int> take_unheard(std::vector<int>& absent) const;
  // Puts up the announcement of collective `number` of a rank that this one carries, the next of that rank. One thread
  // for each such rank. It comes before the engine's own note of it: then this rank can't announce what would take the
  // place of an announcement that is not up yet.
  void post(int rank, std::uint64_t number, std::span<const std::byte> frame);
  // That of collective `number`, the next of that rank, if it is up. Its payload lies on the table until this rank
  // announces the one kSlots further.
  std::optional<Frame> read(int rank, std::uint64_t number) const;
  // When one that read() gives was put up.
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
