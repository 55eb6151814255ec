// exp and tanh as straight-line code, so that loops over them become vectors. Accuracy is held by vector_math_test.
#pragma once

#include <bit>
#include <cstdint>

#include "runtime/tensor/cpu/clones.h"

namespace lockstep::cpu {

// exp(x) to 2 units in the last place for x in [-87, 88]; below it is about 1e-38, above about 1.6e38. NaN stays NaN.
// Reduction and polynomial: Cephes expf, Moshier.
LOCKSTEP_INLINE float fast_exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  // Rounded to the nearest by truncation; the comparison is false for NaN, so that the conversion is defined.
  float turns = x * 1.44269504088896341f;
  turns = turns > -126.0f ? turns : -126.0f;
  const auto n = static_cast<std::int32_t>(turns + (turns < 0 ? -0.5f : 0.5f));
  const auto whole = static_cast<float>(n);
  float r = x - whole * 0.693359375f;
  r = r - whole * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return p * std::bit_cast<float>(static_cast<std::uint32_t>(n + 127) << 23);
}

// tanh(x) to 1e-6 relative. A rational minimax function on [-7.9, 7.9], as in Eigen's generic tanh.
LOCKSTEP_INLINE float fast_tanh(float x) {
  x = x < -7.90531110763549805f ? -7.90531110763549805f : x;
  x = x > 7.90531110763549805f ? 7.90531110763549805f : x;
  const float s = x * x;
  float p = -2.76076847742355e-16f;
  p = p * s + 2.00018790482477e-13f;
  p = p * s + -8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  float q = 1.19825839466702e-06f;
  q = q * s + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  return x * p / q;
}

}  // namespace lockstep::cpu
