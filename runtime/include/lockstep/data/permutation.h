// SPDX-License-Identifier: Apache-2.0
// A random permutation that is computed index by index.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep::data {

// A random order of 0..length-1, a pure function (length, seed, epoch, position) -> sample, the same on every machine.
//
// All 64 bits of the seed and of the epoch count: seed 0's epoch 1 has nothing to do with seed 1's epoch 0. Memory does
// not grow with the length: from kComputed on a sample is computed from its position, in about 0.1 µs, by a Feistel
// network over Philox (docs/adr/0030-an-epochs-order-is-computed-not-stored.md). Below, where a network over so few
// numbers would be less random than a shuffle, it is a Fisher-Yates shuffle over Philox, in a list.
//
// Threads: any number at once. Failure: InvalidArgument for a length or an epoch below 0, and for a position outside
// [0, size()).
class LOCKSTEP_API Permutation {
 public:
  static constexpr std::int64_t kComputed = 4096;  // the shortest length without a list

  Permutation(std::int64_t length, std::uint64_t seed, std::int64_t epoch);

  std::int64_t size() const { return static_cast<std::int64_t>(length_); }
  // The sample at `position`.
  std::int64_t operator[](std::int64_t position) const;
  // Replaces positions by the samples there. Faster than one by one.
  void map(std::span<std::int64_t> positions) const;

 private:
  // One pass through the network, of several positions at once: each waits for its own multiplications only.
  template <std::size_t N>
  LOCKSTEP_LOCAL void encrypt(std::array<std::uint64_t, N>& positions) const;
  void require_within(std::int64_t position) const;
  // A position on from `position`, until it lies within the length.
  std::int64_t walk(std::uint64_t position) const;

  std::uint64_t length_;
  std::uint64_t seed_;
  std::uint64_t epoch_;
  // A position is left * columns_ + right; rows_ * columns_ is length_ or little more.
  std::uint64_t rows_ = 1;
  std::uint64_t columns_ = 1;
  std::shared_ptr<const std::vector<std::int64_t>> list_;  // below kComputed
};

}  // namespace lockstep::data
