// SPDX-License-Identifier: Apache-2.0
// Memory that every rank of a group maps: a memfd of one slice per rank, rank r's own is slice r.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "runtime/comm/shm/control.h"
#include "runtime/comm/shm/memory.h"

namespace lockstep::shm {

// The arenas of one group as one rank sees them, by number; the same number on every rank. An arena stays mapped here
// until every rank has dropped it, so that a peer that still has it can be read, and then until forget_dropped().
//
// Threads: the group's one thread, except that an arena's owner may be dropped on any.
class ArenaTable {
 public:
  ArenaTable(int rank, int size) : rank_(rank), size_(size) {}

  // Bytes of the memfd for an arena whose slices hold `bytes`.
  static std::size_t file_bytes(int size, std::size_t bytes);
  // Lets go of what every rank has dropped.
  void forget_dropped();
  // Adds the next arena. Every rank adds the same ones in the same order.
  Arena add(std::shared_ptr<Mapping> memory, std::size_t bytes);
  // Where `buffer` is in an arena of this rank that it has not dropped.
  ArenaOffset find(const ConstBufferView& buffer) const;
  // True if this rank has that arena: a peer may be through allocate() first, and publish places in what it got there.
  bool knows(const ArenaOffset& offset) const { return static_cast<std::size_t>(offset.arena) < entries_.size(); }
  // Memory of `rank` at a place it has published, in an arena that this rank knows and somebody still has.
  std::byte* address(int rank, const ArenaOffset& offset) const;

 private:
  struct Entry {
    std::shared_ptr<Mapping> memory;  // null once every rank has dropped it
    std::size_t bytes = 0;
    std::size_t stride = 0;
  };

  std::byte* slice(const Entry& entry, int rank) const;

  int rank_;
  int size_;
  std::vector<Entry> entries_;
};

}  // namespace lockstep::shm
