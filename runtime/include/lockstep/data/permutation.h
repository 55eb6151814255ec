// SPDX-License-Identifier: Apache-2.0
// Defines Permutation, a random permutation whose elements can be computed one by one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep::data {

// A Permutation is a random order of the samples 0..length-1. The sample at a position is a pure function of (length,
// seed, epoch, position), with equal results on every machine.
//
// The order depends on all 64 bits of the seed and all 64 bits of the epoch; for example, epoch 1 of seed 0 is
// independent of epoch 0 of seed 1. If the length is kComputed or more, a Feistel network over Philox computes each
// sample from its position, in about 0.1 µs and without a list
// (docs/adr/0030-an-epochs-order-is-computed-not-stored.md). If the length is below kComputed, a Fisher-Yates shuffle
// over Philox makes a list of the samples, because a Feistel network over few numbers is less random than a shuffle.
//
// Threads: any number of threads may use a Permutation at once.
// Failure: the functions of Permutation throw InvalidArgument for a length or an epoch below 0, and for a position
//   outside [0, size()).
class LOCKSTEP_API Permutation {
 public:
  static constexpr std::int64_t kComputed = 4096;  // the shortest length of a permutation without a list

  Permutation(std::int64_t length, std::uint64_t seed, std::int64_t epoch);

  std::int64_t size() const { return static_cast<std::int64_t>(length_); }
  // Returns the sample at `position`.
  std::int64_t operator[](std::int64_t position) const;
  // Replaces each position in `positions` by the sample at this position. A single call of map() is faster than
  // separate calls of operator[] for the positions.
  void map(std::span<std::int64_t> positions) const;

 private:
  // Passes several positions through the Feistel network at once, so that the multiplications of different
  // positions overlap.
  template <std::size_t N>
  LOCKSTEP_LOCAL void encrypt(std::array<std::uint64_t, N>& positions) const;
  void require_within(std::int64_t position) const;
  // Passes `position` through the Feistel network repeatedly until the result is below the length, and returns
  // the result.
  std::int64_t walk(std::uint64_t position) const;

  std::uint64_t length_;
  std::uint64_t seed_;
  std::uint64_t epoch_;
  // The Feistel network permutes the numbers left * columns_ + right, with left < rows_ and right < columns_; rows_ *
  // columns_ is length_ or slightly more.
  std::uint64_t rows_ = 1;
  std::uint64_t columns_ = 1;
  std::shared_ptr<const std::vector<std::int64_t>> list_;  // null from length kComputed on
};

}  // namespace lockstep::data
