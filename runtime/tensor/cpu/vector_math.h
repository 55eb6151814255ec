// SPDX-License-Identifier: Apache-2.0
// exp, the logistic function and tanh as straight-line code, so that loops over them become vectors. Accuracy is held
// by vector_math_test. NaN stays NaN in each.
#pragma once

#include <bit>
#include <cstdint>

#include "runtime/tensor/cpu/clones.h"

namespace lockstep::cpu {

// exp(x) = (fraction + 1) 2^power, fraction in [-0.3, 0.42].
struct ReducedExp {
  float fraction;
  std::int32_t power;
};

// For |x| up to 1e6. Reduction and polynomial: Cephes expf, Moshier.
LOCKSTEP_INLINE ReducedExp reduced_exp(float x) {
  // Added, it leaves no bits for a fraction: the sum's low bits are x / log(2), rounded to the nearest integer.
  constexpr float kRound = 0x1.8p23f;
  const float shifted = x * 1.44269504088896341f + kRound;
  const float whole = shifted - kRound;
  float r = x - whole * 0.693359375f;
  r = r - whole * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return {p * (r * r) + r,
          static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kRound))};
}

// For power in [-126, 127]; 128 gives infinity.
LOCKSTEP_INLINE float power_of_two(std::int32_t power) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(power + 127) << 23);
}

// exp(x) to 1 unit in the last place, subnormal results included; 0 below -104, infinity above 88.73.
LOCKSTEP_INLINE float fast_exp(float x) {
  const bool vanishes = x < -104.0f;
  x = vanishes ? 0.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const ReducedExp e = reduced_exp(x);
  // Two factors: the power alone may lie outside the range of a float while the product does not.
  const std::int32_t half = e.power >> 1;
  const float value = (e.fraction + 1.0f) * power_of_two(half) * power_of_two(e.power - half);
  return vanishes ? 0.0f : value;
}

// The same with fewer steps for x in [-87.6, 88.3], whose results are normal floats.
LOCKSTEP_INLINE float fast_exp_within(float x) {
  const ReducedExp e = reduced_exp(x);
  return (e.fraction + 1.0f) * power_of_two(e.power);
}

// The same for every x: about 1e-38 below -87, infinity above 88.4.
LOCKSTEP_INLINE float fast_exp_normal(float x) {
  x = x < -87.0f ? -87.0f : x;
  return fast_exp_within(x > 89.0f ? 89.0f : x);
}

// tanh(x) to 1.1 units in the last place: a polynomial near 0 (minimax for the relative error), 1 - 2 / (exp(2x) + 1)
// elsewhere, which would cancel there.
LOCKSTEP_INLINE float fast_tanh(float x) {
  constexpr std::uint32_t kSign = 0x80000000u;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  float magnitude = std::bit_cast<float>(bits & ~kSign);
  magnitude = magnitude > 10.0f ? 10.0f : magnitude;  // 1 from 9.02 on
  const bool is_far = magnitude > 0.85f;

  const float s = is_far ? 0.0f : magnitude * magnitude;
  float p = 1.4401807e-3f;
  p = p * s + -7.14283017e-3f;
  p = p * s + 2.1121094e-2f;
  p = p * s + -5.37964627e-2f;
  p = p * s + 1.33314788e-1f;
  p = p * s + -3.33332658e-1f;
  const float near = p * s * magnitude + magnitude;

  const ReducedExp e = reduced_exp(2.0f * magnitude);
  const float power = power_of_two(e.power);
  // exp(2x) + 1 with one rounding: the power plus 1 is exact.
  const float far = 1.0f - 2.0f / (e.fraction * power + (power + 1.0f));
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(is_far ? far : near) | (bits & kSign));
}

}  // namespace lockstep::cpu
