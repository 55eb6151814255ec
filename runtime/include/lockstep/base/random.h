// SPDX-License-Identifier: Apache-2.0
// Computes counter-based random numbers with Philox4x32-10.
//
// Each random number is a pure function of its key and counter, so a key and counter give equal numbers on every rank
// and thread, whatever the order of the calls. Philox is described by Salmon et al. in "Parallel random numbers: as
// easy as 1, 2, 3", SC'11.
#pragma once

#include <array>
#include <cstdint>

#include "lockstep/base/api.h"

namespace lockstep {

using PhiloxKey = std::array<std::uint32_t, 2>;
using PhiloxCounter = std::array<std::uint32_t, 4>;

// Returns four independent uniform 32-bit numbers.
constexpr std::array<std::uint32_t, 4> philox(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = 0xD2511F53ull * counter[0];
    const std::uint64_t product1 = 0xCD9E8D57ull * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// Converts 32 random bits to a float in [0, 1) that is a multiple of 2^-24.
constexpr float uniform01(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1.0p-24f; }

// Converts 64 random bits to an integer in [0, bound), where 1 <= bound <= 2^32. The probabilities of the integers
// differ by at most bound / 2^64.
constexpr std::uint64_t scale_bits(std::uint64_t bits, std::uint64_t bound) {
  // The result is bits * bound / 2^64, computed without 128-bit integers; `bound` has at most 33 bits.
  return ((bits >> 32) * bound + ((bits & 0xffffffff) * bound >> 32)) >> 32;
}

// Generator draws a sequence of numbers from philox(), for shuffles and weight initialisation. Generators with equal
// `seed` and `stream` give equal sequences on every machine.
class LOCKSTEP_API Generator {
 public:
  explicit constexpr Generator(std::uint64_t seed, std::uint64_t stream = 0)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
        counter_{0, 0, static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)} {}

  std::uint32_t next();
  // Returns a uniformly distributed integer in [0, bound), without bias. `bound` is at least 1.
  std::uint64_t below(std::uint64_t bound);
  // Returns a uniformly distributed number in [0, 1).
  float uniform() { return uniform01(next()); }
  // Returns a normally distributed number with mean 0 and variance 1, computed by the Box-Muller transform.
  float normal();

 private:
  PhiloxKey key_;
  PhiloxCounter counter_;
  std::array<std::uint32_t, 4> block_{};
  unsigned used_ = 4;
};

// RandomKey holds a seed, a layer and a step. A RandomKey, a sample id and an element's index together decide a random
// number. The rank, the micro-batch and the order of computation never change the random number.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t layer = 0;  // a hash of the layer's name
  std::uint64_t step = 0;
};

}  // namespace lockstep
