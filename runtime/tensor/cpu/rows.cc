// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "runtime/tensor/cpu/cpu_kernels.h"
#include "runtime/tensor/cpu/lane_sums.h"
#include "runtime/tensor/cpu/strip_sums.h"

namespace lockstep::cpu {

LOCKSTEP_CLONES void transpose(Into out, const float* a, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kSquare = 16;  // a square of this side is transposed within the cache
  for (std::int64_t r0 = 0; r0 < rows; r0 += kSquare) {
    const std::int64_t r1 = std::min(r0 + kSquare, rows);
    for (std::int64_t c = 0; c < columns; ++c) {
      float* target = out.data + c * rows;
      // Added to -0, every value stays as it is, -0 too.
#pragma omp simd
      for (std::int64_t r = r0; r < r1; ++r) target[r] = (out.add ? target[r] : -0.0f) + a[r * columns + c];
    }
  }
}

LOCKSTEP_CLONES void add_row(float* out, const float* a, const float* row, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) {
    float* target = out + r * columns;
    const float* source = a + r * columns;
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) target[c] = source[c] + row[c];
  }
}

LOCKSTEP_CLONES void sum_rows(Into out, const float* a, std::int64_t rows, std::int64_t columns) {
  sum_strips(out, rows, columns, [=](std::int64_t r, std::int64_t c) { return a[r * columns + c]; });
}

LOCKSTEP_CLONES void sum(Into out, const float* a, float alpha, std::int64_t count) {
  const auto total = sum_in_lanes<double>(count, [=](std::int64_t i) { return static_cast<double>(a[i]); });
  *out.data = static_cast<float>((out.add ? static_cast<double>(*out.data) : 0.0) + static_cast<double>(alpha) * total);
}

// A square of a float is exact in double, so that fused or not is the same.
LOCKSTEP_CLONES double sum_squares(const float* a, std::int64_t count) {
  return sum_in_lanes<double>(count,
                              [=](std::int64_t i) { return static_cast<double>(a[i]) * static_cast<double>(a[i]); });
}

}  // namespace lockstep::cpu
