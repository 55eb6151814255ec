// SPDX-License-Identifier: Apache-2.0
// Arrays of float16 to float and back, as device/dtype.h converts one: by the processor's own instructions where it has
// them (F16C).
//
// Every way gives the same bits; but a float made of a signalling NaN may be a quiet one. The arrays don't overlap. Any
// thread.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/device/dtype.h"

namespace lockstep {

void to_floats(const float16* from, float* out, std::size_t count);
void to_float16s(const float* from, float16* out, std::size_t count);

// One way of converting, for tests that compare them.
struct HalfArrays {
  const char* name;  // of the instruction set: "F16C"
  void (*to_floats)(const float16* from, float* out, std::size_t count);
  void (*to_float16s)(const float* from, float16* out, std::size_t count);
};
// All that this processor can run, the one that is taken first; device/dtype.h's, which needs nothing, last.
std::span<const HalfArrays> half_arrays();

}  // namespace lockstep
