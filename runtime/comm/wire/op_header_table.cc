// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/op_header_table.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>

namespace lockstep::wire {

struct alignas(64) OpHeaderTable::Slot {
  std::atomic<std::uint64_t> number;         // the number of the collective whose announcement the slot holds
  std::chrono::steady_clock::time_point at;  // the time of post(); all ranks of a host have one clock
  alignas(64) FrameBytes frame;
};

// A Count is the total number of announcements, of all ranks, that have been put into the slots with one index.
struct alignas(64) OpHeaderTable::Count {
  std::atomic<std::uint64_t> posted;
};

namespace {

// Returns, for each rank of the group, the place on `host` of the relay that puts the rank's announcements
// on the table.
std::vector<std::size_t> relay_ranks_on(const Hosts& hosts, std::size_t host) {
  std::size_t ranks = 0;
  for (const auto& of_host : hosts.ranks) ranks += of_host.size();
  std::vector<std::size_t> relay_ranks(ranks);
  for (const auto& of_host : hosts.ranks) {
    for (std::size_t i = 0; i < of_host.size(); ++i) {
      relay_ranks[static_cast<std::size_t>(of_host[i])] = i % hosts.ranks[host].size();
    }
  }
  return relay_ranks;
}

constexpr std::size_t kPage = 4096;

}  // namespace

// Each rank of the host has a part of the table. The parts have equal sizes, and each part begins at a page. A part
// holds the rank's doorbell, the counts (only the first part's counts are used), and kSlots slots for each rank whose
// announcements this rank relays.
std::size_t OpHeaderTable::bytes_for(const Hosts& hosts) {
  const std::vector<std::size_t> relay_ranks = relay_ranks_on(hosts, hosts.host);
  std::size_t most = 0;
  for (std::size_t local = 0; local < hosts.neighbours().size(); ++local) {
    most = std::max(most, static_cast<std::size_t>(std::count(relay_ranks.begin(), relay_ranks.end(), local)));
  }
  const std::size_t part = sizeof(DoorbellWords) + kSlots * sizeof(Count) + most * kSlots * sizeof(Slot);
  return (part + kPage - 1) / kPage * kPage * hosts.neighbours().size();
}

void OpHeaderTable::format(std::byte* memory, const Hosts& hosts) {
  const OpHeaderTable op_headers(memory, hosts, {});
  new (op_headers.bells_[op_headers.local_].words) DoorbellWords{};
  if (op_headers.local_ == 0) std::uninitialized_value_construct_n(op_headers.counts_, kSlots);
  for (std::size_t rank = 0; rank < op_headers.ranks_; ++rank) {
    if (op_headers.relay_[rank] == op_headers.local_)
      std::uninitialized_value_construct_n(op_headers.slots_[rank], kSlots);
  }
}

OpHeaderTable::OpHeaderTable(std::byte* memory, const Hosts& hosts,
                             std::span<const std::shared_ptr<const EventFd>> bell_files)
    : ranks_(relay_ranks_on(hosts, hosts.host).size()),
      local_(hosts.local),
      neighbours_(hosts.neighbours()),
      slots_(ranks_),
      relay_(relay_ranks_on(hosts, hosts.host)),
      counts_(reinterpret_cast<Count*>(memory + sizeof(DoorbellWords))) {
  const std::size_t neighbours = hosts.neighbours().size();
  const std::size_t part = bytes_for(hosts) / neighbours;
  for (std::size_t i = 0; i < neighbours; ++i) {
    bells_.push_back(
        {reinterpret_cast<DoorbellWords*>(memory + i * part), bell_files.empty() ? nullptr : bell_files[i]});
  }
  std::vector<std::size_t> carried(neighbours);
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    const std::size_t relay = relay_[rank];
    std::byte* const first = memory + relay * part + sizeof(DoorbellWords) + kSlots * sizeof(Count);
    slots_[rank] = reinterpret_cast<Slot*>(first + carried[relay]++ * kSlots * sizeof(Slot));
    if (relay != local_) relayed_by_others_.push_back(static_cast<int>(rank));
  }
  for (std::size_t i = 1; i < hosts.ranks.size(); ++i) {
    const std::vector<int>& other = hosts.ranks[(hosts.host + i) % hosts.ranks.size()];
    relay_ranks_.push_back(other[local_ % other.size()]);
  }
}

OpHeaderTable::Slot& OpHeaderTable::slot(int rank, std::uint64_t number) const {
  return slots_[static_cast<std::size_t>(rank)][number % kSlots];
}

void OpHeaderTable::post(int rank, std::uint64_t number, std::span<const std::byte> frame) {
  Slot& to = slot(rank, number);
  std::copy_n(frame.begin(), std::min(used_bytes(frame), kFrameBytes), to.frame.begin());
  to.at = std::chrono::steady_clock::now();
  to.number.store(number, std::memory_order_release);
  // `all` is the value that the count reaches with the last announcement of collective `number`: each rank posts one
  // announcement per use of the slot's index. The call of post() whose addition reaches `all` comes after all other
  // additions, so the ranks whose bells ring find all slots of the collective filled.
  const std::uint64_t all = ((number - 1) / kSlots + 1) * ranks_;
  Count& count = counts_[(number - 1) % kSlots];
  if (count.posted.fetch_add(1, std::memory_order_acq_rel) + 1 != all) return;
  for (std::size_t i = 0; i < bells_.size(); ++i) {
    if (i != local_) bells_[i].ring();
  }
}

std::vector<int> OpHeaderTable::take_unheard(std::vector<int>& absent) const {
  const std::vector<int> all = absent;
  std::vector<int> unheard;
  std::erase_if(absent, [&](int rank) {
    const int relay = neighbours_[relay_[static_cast<std::size_t>(rank)]];
    if (relay == rank || relay == neighbours_[local_] || !std::binary_search(all.begin(), all.end(), relay)) {
      return false;
    }
    unheard.push_back(rank);
    return true;
  });
  return unheard;
}

std::optional<Frame> OpHeaderTable::read(int rank, std::uint64_t number) const {
  const Slot& from = slot(rank, number);
  if (from.number.load(std::memory_order_acquire) != number) return std::nullopt;
  return read_frame(from.frame);
}

std::chrono::steady_clock::time_point OpHeaderTable::time_of(int rank, std::uint64_t number) const {
  return slot(rank, number).at;
}

}  // namespace lockstep::wire
