// SPDX-License-Identifier: Apache-2.0
// bfloat16 and float16 to float and back, rounded to nearest even. Free of branches, so that loops over them vectorise.
//
// Exact for every value, subnormals and infinities included; a NaN stays a NaN (its payload may change). Source of the
// float16 forms: F. Giesen, https://gist.github.com/rygorous/2156668.
#pragma once

#include <bit>
#include <cstdint>

#include "lockstep/device/dtype.h"

namespace lockstep {

inline float to_float(bfloat16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

inline bfloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<std::uint16_t>(is_nan ? quiet_nan : rounded)};
}

inline float to_float(float16 value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = value.bits & 0x7fffu;
  const std::uint32_t shifted = magnitude << 13;
  const std::uint32_t normal = shifted + ((127u - 15u) << 23);
  const std::uint32_t special = normal + ((128u - 16u) << 23);
  // A subnormal half is a normal float: let the subtraction normalise it.
  const float subnormal = std::bit_cast<float>(shifted + (113u << 23)) - std::bit_cast<float>(113u << 23);
  const std::uint32_t finite = magnitude < 0x0400u ? std::bit_cast<std::uint32_t>(subnormal) : normal;
  return std::bit_cast<float>(sign | (magnitude >= 0x7c00u ? special : finite));
}

inline float16 to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  constexpr std::uint32_t kInfinity = 0x7f800000u;
  constexpr std::uint32_t kTooLarge = (127u + 16u) << 23;
  constexpr std::uint32_t kSmallestNormal = 113u << 23;
  constexpr std::uint32_t kAligner = ((127u - 15u) + (23u - 10u) + 1u) << 23;
  const std::uint32_t special = magnitude > kInfinity ? 0x7e00u : 0x7c00u;
  // Adding 0.5 puts the ten bits that stay at the bottom and rounds the others off.
  const float aligned =
      std::bit_cast<float>(magnitude < kSmallestNormal ? magnitude : 0u) + std::bit_cast<float>(kAligner);
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(aligned) - kAligner;
  const std::uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const std::uint32_t finite = magnitude < kSmallestNormal ? subnormal : normal;
  return {static_cast<std::uint16_t>(sign | (magnitude >= kTooLarge ? special : finite))};
}

}  // namespace lockstep
