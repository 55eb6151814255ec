// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "runtime/base/exact_squares.h"
#include "runtime/tensor/cpu/cpu_kernels.h"
#include "runtime/tensor/cpu/lane_sums.h"
#include "runtime/tensor/cpu/strip_sums.h"
#include "runtime/tensor/findings.h"

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

void sum_squares(double* out, const float* a, std::int64_t count) {
  ExactSquares squares;
  squares.add(a, count);
  *out = squares.sum();
}

void clip_factor(double* norm, float* factor, const double* squares, std::int64_t count, double max_norm) {
  double total = 0;
  for (std::int64_t i = 0; i < count; ++i) total += squares[i];
  *norm = std::sqrt(total);
  *factor = 0;
  if (!std::isfinite(*norm) && std::isfinite(max_norm)) {
    // All may be finite, and their sum not.
    std::int64_t first = 0;
    while (first + 1 < count && std::isfinite(squares[first])) ++first;
    throw_finding({.kind = Finding::Kind::bad_norm, .position = first, .norm = *norm});
  }
  *factor = *norm > max_norm ? static_cast<float>(max_norm / *norm) : 1.0f;
}

void scale_by(float* data, const float* factor, std::int64_t count) {
  if (*factor != 1) scale({data, false}, data, *factor, count);
}

}  // namespace lockstep::cpu
