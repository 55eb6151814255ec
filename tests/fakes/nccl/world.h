// SPDX-License-Identifier: Apache-2.0
// Where the ranks of one communicator meet: a file that each maps, be they threads or processes.
//
// Every word has one writer and only grows, but `tick`, on which all sleep. Zero bytes are a valid beginning.
//
// Threads: those of the streams and of the fake itself, any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace lockstep::fake_nccl {

inline constexpr int kMostRanks = 16;
inline constexpr std::size_t kSlotBytes = 128 << 10;
inline constexpr std::size_t kChannelBytes = 64 << 10;

// A rank's part of a collective.
struct Slot {
  std::atomic<std::uint64_t> posted;  // rounds
  std::atomic<std::uint64_t> taken;
  char operation[128];  // what this rank calls
  std::byte data[kSlotBytes];
};

// Messages from one rank to another.
struct Channel {
  std::atomic<std::uint64_t> posted;  // chunks
  std::atomic<std::uint64_t> taken;
  std::uint64_t bytes;  // of the chunk
  std::byte data[kChannelBytes];
};

struct Shared {
  std::atomic<std::uint32_t> tick;
  std::atomic<std::uint32_t> joined;
  std::atomic<std::uint32_t> finalized;
  char places[kMostRanks][128];  // GPU and host of each
  Slot slots[kMostRanks];
  Channel channels[kMostRanks][kMostRanks];  // from, to
};

class World {
 public:
  // Maps the file, which the first rank makes.
  World(std::string path, int size);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int size() const { return size_; }
  Shared& shared() { return *shared_; }
  void notify();
  // Sleeps until it holds; false once `aborted` does.
  bool wait(const std::function<bool()>& holds, const std::atomic<bool>& aborted);
  // Sleeps until somebody notifies, for a moment at most.
  void doze(std::uint32_t tick);
  std::uint32_t tick() const { return shared_->tick.load(); }
  // Takes the file's name away.
  void forget();

 private:
  const std::string path_;
  const int size_;
  Shared* shared_ = nullptr;
};

}  // namespace lockstep::fake_nccl
