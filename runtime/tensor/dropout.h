// SPDX-License-Identifier: Apache-2.0
// Which elements dropout keeps, the same on every device: those whose random number is below the threshold.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/base/random.h"

namespace lockstep {

// Sixteen philox blocks side by side give 64 numbers: number lane * 16 + j of group g is word `lane` of block 16 g + j,
// of counter {16 g + j, 0, the sample's id, its upper half}.
inline constexpr std::int64_t kDropoutBlocks = 16;
inline constexpr std::int64_t kDropoutGroup = 4 * kDropoutBlocks;

// Spreads the bits of a 64-bit value (SplitMix64's finaliser).
inline std::uint64_t spread_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

inline PhiloxKey dropout_key(const RandomKey& key) {
  const std::uint64_t bits =
      spread_bits(spread_bits(spread_bits(key.seed + 0x9E3779B97F4A7C15ull) + key.layer) + key.step);
  return {static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32)};
}

inline std::uint32_t dropout_threshold(float keep) {
  return static_cast<std::uint32_t>(std::min(static_cast<double>(keep) * 0x1.0p32, 4294967295.0));
}

}  // namespace lockstep
