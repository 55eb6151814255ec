// SPDX-License-Identifier: Apache-2.0
// How a rank fills memory that others read, again and again: by ordinary stores or by streaming ones, whichever the
// machine is faster with.
//
// Ordinary stores keep the memory in the cache, and first take each line away from the ranks that have read it. Between
// cores that share a cache this costs next to nothing; between others (two sockets, two complexes of one chip) it takes
// twenty times as long as the copy. Streaming stores go to memory, from where the others read at half the speed. No
// process is told where the others' cores are, and threads and virtual cores move: so a piece of a copy is timed now
// and then, by either kind in turns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace lockstep::shm {

enum class Stores : std::uint8_t { ordinary, streaming };

// Which stores are faster, by the copies so far.
class StoreChoice {
 public:
  // Counts a copy. The stores to time in a piece of it, if it is one of those.
  std::optional<Stores> trial();
  void note(Stores stores, double seconds);
  Stores best() const { return best_; }

 private:
  std::uint32_t copies_ = 0;
  std::array<double, 2> cost_{};  // seconds that a piece takes, by stores; 0: not timed yet
  Stores best_ = Stores::ordinary;
};

// Threads: one at a time.
class WindowWriter {
 public:
  // Copies to `to`, which is a multiple of 64 bytes from the window's start. A word that is posted afterwards is not
  // seen before the bytes are.
  void copy(std::byte* to, const std::byte* from, std::size_t bytes);

 private:
  StoreChoice little_;
  StoreChoice much_;
};

// Asks for cache lines that others have read, all at once instead of one store after the other.
void prefetch_for_write(std::byte* begin, std::size_t bytes);
// The copy itself. Streaming waits until the bytes are on their way.
void copy_by(Stores stores, std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace lockstep::shm
