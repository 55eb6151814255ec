// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/permutation.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep::data {
namespace {

constexpr std::uint32_t kRounds = 8;  // each half is shifted four times

// The least number whose square is at least `value`.
std::uint64_t ceil_sqrt(std::uint64_t value) {
  auto root = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(value)));
  while (root > 0 && (root - 1) * (root - 1) >= value) --root;
  while (root * root < value) ++root;
  return root;
}

std::vector<std::int64_t> shuffled_list(std::uint64_t length, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::int64_t> order(length);
  std::iota(order.begin(), order.end(), 0);
  Generator generator(seed, epoch);
  for (std::size_t left = order.size(); left > 1; --left) std::swap(order[left - 1], order[generator.below(left)]);
  return order;
}

}  // namespace

Permutation::Permutation(std::int64_t length, std::uint64_t seed, std::int64_t epoch)
    : length_(static_cast<std::uint64_t>(length)), seed_(seed), epoch_(static_cast<std::uint64_t>(epoch)) {
  if (length < 0)
    throw InvalidArgument(
        fmt::format("permutation: length is {}; it must be at least 0: give the number of samples", length));
  if (epoch < 0)
    throw InvalidArgument(fmt::format("permutation: epoch is {}; it must be at least 0: count epochs from 0", epoch));
  if (length < kComputed) {
    list_ = std::make_shared<const std::vector<std::int64_t>>(shuffled_list(length_, seed_, epoch_));
    return;
  }
  rows_ = ceil_sqrt(length_);
  columns_ = length_ / rows_ + (length_ % rows_ != 0);
}

// Black and Rogaway's generalised Feistel network ("Ciphers with arbitrary finite domains", CT-RSA 2002) on rows times
// columns: the halves are shifted in turn by a random number that depends on the other half, the round, the epoch and
// the seed. A Generator of the same seed has 0 in the second word of its counters, where a round has 1 to kRounds.
template <std::size_t N>
void Permutation::encrypt(std::array<std::uint64_t, N>& positions) const {
  const PhiloxKey key{static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)};
  const auto epoch_low = static_cast<std::uint32_t>(epoch_);
  const auto epoch_high = static_cast<std::uint32_t>(epoch_ >> 32);
  std::array<std::uint64_t, N> shifted, other;
  for (std::size_t i = 0; i < N; ++i) {
    shifted[i] = positions[i] / columns_;
    other[i] = positions[i] % columns_;
  }
  std::uint64_t shifted_bound = rows_;
  std::uint64_t other_bound = columns_;
  for (std::uint32_t round = 1; round <= kRounds; ++round) {
    for (std::size_t i = 0; i < N; ++i) {
      const auto random = philox({static_cast<std::uint32_t>(other[i]), round, epoch_low, epoch_high}, key);
      shifted[i] += scale_bits(std::uint64_t{random[1]} << 32 | random[0], shifted_bound);
      if (shifted[i] >= shifted_bound) shifted[i] -= shifted_bound;
    }
    std::swap(shifted, other);
    std::swap(shifted_bound, other_bound);
  }
  static_assert(kRounds % 2 == 0, "the halves are back in their places");
  for (std::size_t i = 0; i < N; ++i) positions[i] = shifted[i] * columns_ + other[i];
}

void Permutation::require_within(std::int64_t position) const {
  if (static_cast<std::uint64_t>(position) < length_) return;
  throw InvalidArgument(
      fmt::format("permutation: position {} was asked for in a permutation of {} samples; give a position of at least "
                  "0 and below that number",
                  position, length_));
}

// Cycle walking: what comes to lie beyond the length goes through the network again, which is a permutation of the
// positions within. At most 2 / sqrt(length) of the network's domain lies beyond.
std::int64_t Permutation::walk(std::uint64_t position) const {
  std::array<std::uint64_t, 1> one{position};
  while (one[0] >= length_) encrypt(one);
  return static_cast<std::int64_t>(one[0]);
}

std::int64_t Permutation::operator[](std::int64_t position) const {
  require_within(position);
  if (list_) return (*list_)[static_cast<std::size_t>(position)];
  std::array<std::uint64_t, 1> one{static_cast<std::uint64_t>(position)};
  encrypt(one);
  return walk(one[0]);
}

void Permutation::map(std::span<std::int64_t> positions) const {
  std::size_t at = 0;
  if (!list_) {
    for (; at + 2 <= positions.size(); at += 2) {
      require_within(positions[at]);
      require_within(positions[at + 1]);
      std::array<std::uint64_t, 2> two{static_cast<std::uint64_t>(positions[at]),
                                       static_cast<std::uint64_t>(positions[at + 1])};
      encrypt(two);
      positions[at] = walk(two[0]);
      positions[at + 1] = walk(two[1]);
    }
  }
  for (; at < positions.size(); ++at) positions[at] = (*this)[positions[at]];
}

}  // namespace lockstep::data
