// SPDX-License-Identifier: Apache-2.0
// OpHeaderTable holds the announcements of all ranks in memory that the ranks of one host share. An announcement that
// one rank of a host has got need not be sent to its neighbours.
//
// Every rank's announcements reach a host through one rank of the host, their relay. A host's own ranks are their own
// relays. The l-th rank of a host is the relay of the l-th rank of each other host (modulo the host's number of ranks).
// So a rank sends an announcement to one rank of each other host. The relay puts the announcement on the table. The
// relay of a collective's last announcement rings the host's bells, so each rank wakes once per collective.
//
// A slot is used again after kSlots collectives, when no rank reads it any more. A rank announces a collective at most
// kAhead after the last collective of which it has read all announcements. So when one rank announces collective n, all
// ranks have announced n - kAhead and have read the announcements of n - kSlots.
//
// Words are stored with release after the memory that they stand for, and read with acquire before that memory.
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

  // Returns the size of the memory for the table of this rank's host.
  static std::size_t bytes_for(const Hosts& hosts);
  // Formats this rank's part of the table. REQUIRES: `memory` is zero, and no rank of the host uses the table yet.
  static void format(std::byte* memory, const Hosts& hosts);

  // `memory` must outlive the table. `bell_files` are the files that the ranks of the host sleep on, by place.
  OpHeaderTable(std::byte* memory, const Hosts& hosts, std::span<const std::shared_ptr<const EventFd>> bell_files);

  // Returns this rank's bell.
  DoorbellWords& bell() const { return *bells_[local_].words; }
  // Returns the bells of all ranks of the host, by place.
  const std::vector<DoorbellButton>& bells() const { return bells_; }
  // Returns the ranks that carry this rank's announcements on the other hosts.
  const std::vector<int>& relay_ranks() const { return relay_ranks_; }
  // Returns the ranks whose announcements other ranks of this host carry.
  const std::vector<int>& relayed_by_others() const { return relayed_by_others_; }
  bool is_relay_of(int rank) const { return relay_[static_cast<std::size_t>(rank)] == local_; }
  // Removes from `absent` the ranks of other hosts whose relay is another rank of this host that is also in `absent`.
  // If the relay is suspended, no announcement of these ranks arrives. Returns the removed ranks. `absent` is sorted.
  std::vector<int> take_unheard(std::vector<int>& absent) const;
  // Puts the announcement of collective `number`, the next collective of `rank`, on the table. REQUIRES: this rank is
  // the relay of `rank`. One thread for each `rank` calls post(). The engine notes the announcement after post(): until
  // the note, this rank can't announce a collective whose announcement would take the slot.
  void post(int rank, std::uint64_t number, std::span<const std::byte> frame);
  // Returns the announcement of collective `number`, the rank's next collective, if the table has the announcement. The
  // payload stays valid until this rank announces the collective kSlots later.
  std::optional<Frame> read(int rank, std::uint64_t number) const;
  // Returns the time of the post() of an announcement that read() returned.
  std::chrono::steady_clock::time_point time_of(int rank, std::uint64_t number) const;

 private:
  struct Slot;
  struct Count;

  Slot& slot(int rank, std::uint64_t number) const;

  const std::size_t ranks_;  // the number of ranks of all hosts
  const std::size_t local_;
  const std::vector<int> neighbours_;  // the ranks of this host
  std::vector<DoorbellButton> bells_;  // the bells of the ranks, by place on the host
  std::vector<Slot*> slots_;           // the first slot of each rank
  std::vector<std::size_t> relay_;     // by rank: the place of the rank's relay on this host
  Count* counts_;                      // the counts, by (number - 1) modulo kSlots
  std::vector<int> relay_ranks_;
  std::vector<int> relayed_by_others_;
};

}  // namespace lockstep::wire
