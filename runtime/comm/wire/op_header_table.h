// SPDX-License-Identifier: Apache-2.0
// OpHeaderTable holds all ranks' announcements of collectives in memory that the ranks of one host share. Because of
// OpHeaderTable, a rank sends each announcement to only one rank of each other host.
//
// A rank's announcements reach a host through one rank of that host, the relay, which puts the announcements on the
// table. On its own host, each rank relays its own announcements. On a host with n ranks, the relay of the l-th rank of
// another host is the rank at place l modulo n. The relay that puts a collective's last announcement on the table rings
// the host's doorbells, so each rank wakes only once per collective.
//
// A slot of the table is reused after kSlots collectives, when no rank needs the old announcement. A rank announces at
// most kAhead collectives beyond the last collective of which the rank has read all announcements. When a rank
// announces collective n, all ranks have therefore announced collective n - kAhead and have read the announcements of
// collective n - kSlots.
//
// An atomic word that guards other memory is stored with release order after the memory is written, and loaded with
// acquire order before the memory is read.
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
  // Formats this rank's part of the table. REQUIRES: all bytes of `memory` are zero, and no rank of the host uses the
  // table yet.
  static void format(std::byte* memory, const Hosts& hosts);

  // `memory` must outlive the table. `bell_files` holds the eventfd files on which the ranks of the host sleep, by
  // place on the host.
  OpHeaderTable(std::byte* memory, const Hosts& hosts, std::span<const std::shared_ptr<const EventFd>> bell_files);

  // Returns this rank's bell.
  DoorbellWords& bell() const { return *bells_[local_].words; }
  // Returns the doorbells of all ranks of the host, by place on the host.
  const std::vector<DoorbellButton>& bells() const { return bells_; }
  // Returns the ranks of other hosts that are the relays of this rank's announcements.
  const std::vector<int>& relay_ranks() const { return relay_ranks_; }
  // Returns the ranks whose announcements are put on the table by other ranks of this host.
  const std::vector<int>& relayed_by_others() const { return relayed_by_others_; }
  bool is_relay_of(int rank) const { return relay_[static_cast<std::size_t>(rank)] == local_; }
  // Removes from `absent` each rank of another host whose relay on this host is also in `absent`. Ranks whose relay is
  // this rank stay in `absent`. A removed rank may have announced its collectives, because a suspended relay does not
  // put the announcements on the table. Returns the removed ranks. REQUIRES: `absent` is sorted.
  std::vector<int> take_unheard(std::vector<int>& absent) const;
  // Puts the announcement of collective `number`, the next collective of `rank`, on the table. REQUIRES: this rank is
  // the relay of `rank`. For each `rank`, only one thread calls post(). The engine calls ArrivalTable::note() only
  // after post(), because note() may let this rank announce a later collective, whose announcement may reuse the slot.
  void post(int rank, std::uint64_t number, std::span<const std::byte> frame);
  // Returns the announcement of collective `number`, the next collective of `rank`, or nullopt if the announcement
  // is not on the table. The payload of the returned frame stays valid until this rank announces collective `number`
  // + kSlots.
  std::optional<Frame> read(int rank, std::uint64_t number) const;
  // Returns the time at which post() was called for an announcement that read() has returned.
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
