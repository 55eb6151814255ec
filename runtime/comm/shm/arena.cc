// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/shm/arena.h"

#include <fmt/format.h>

#include <atomic>

#include "lockstep/base/error.h"
#include "lockstep/base/owner_process.h"

namespace lockstep::shm {
namespace {

constexpr std::size_t kPage = 4096;
// The first page says who has dropped the arena: a flag per rank, set by that rank.
using Dropped = std::atomic<std::uint32_t>;
static_assert(sizeof(Dropped) * kMaxRanks <= kPage);

Dropped& dropped(const Mapping& memory, int rank) { return reinterpret_cast<Dropped*>(memory.data())[rank]; }

std::size_t stride_for(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// What Arena::owner points at. Its end only sets this rank's flag: the mapping goes in forget_dropped(), once every
// flag is set, since a slower peer may still read this slice for a collective that is done here.
struct Handle {
  Handle(std::shared_ptr<Mapping> mapping, int owner_rank) : memory(std::move(mapping)), rank(owner_rank) {}
  ~Handle() {
    if (owner.is_here()) dropped(*memory, rank).store(1, std::memory_order_release);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  std::shared_ptr<Mapping> memory;
  int rank;
  OwnerProcess owner;
};

}  // namespace

std::size_t ArenaTable::file_bytes(int size, std::size_t bytes) {
  return kPage + static_cast<std::size_t>(size) * stride_for(bytes);
}

std::byte* ArenaTable::slice(const Entry& entry, int rank) const {
  return entry.memory->data() + kPage + static_cast<std::size_t>(rank) * entry.stride;
}

Arena ArenaTable::add(std::shared_ptr<Mapping> memory, std::size_t bytes) {
  entries_.push_back({memory, bytes, stride_for(bytes)});
  std::byte* data = slice(entries_.back(), rank_);
  return {std::make_shared<Handle>(std::move(memory), rank_), data, bytes};
}

void ArenaTable::forget_dropped() {
  for (Entry& entry : entries_) {
    bool all = entry.memory != nullptr;
    for (int r = 0; all && r < size_; ++r) all = dropped(*entry.memory, r).load(std::memory_order_acquire) != 0;
    if (all) entry.memory.reset();
  }
}

ArenaOffset ArenaTable::find(const ConstBufferView& buffer) const {
  const auto* data = static_cast<const std::byte*>(buffer.data);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.memory == nullptr) continue;
    const std::byte* begin = slice(entry, rank_);
    // An arena that this rank has dropped is mapped still, so nothing of the user's can be at its addresses.
    if (data >= begin && data + buffer.bytes() <= begin + entry.bytes) {
      return {static_cast<std::int64_t>(i), static_cast<std::uint64_t>(data - begin)};
    }
  }
  return {};
}

std::byte* ArenaTable::address(int rank, const ArenaOffset& offset) const {
  if (!knows(offset) || entries_[static_cast<std::size_t>(offset.arena)].memory == nullptr) {
    throw CorruptData(
        fmt::format("shared memory: rank {} published a place in arena {}, which is gone, or is not among the {} "
                    "arenas that rank {} has seen; keep each arena until the work on it is done",
                    rank, offset.arena, entries_.size(), rank_));
  }
  return slice(entries_[static_cast<std::size_t>(offset.arena)], rank) + offset.offset;
}

}  // namespace lockstep::shm
