// SPDX-License-Identifier: Apache-2.0
// Sums in two launches: of parts, whose sizes are fixed, then of the parts.
#pragma once

#include "runtime/tensor/cuda/launch.cuh"
#include "runtime/tensor/kernels.h"

namespace lockstep::cuda {

inline constexpr std::int64_t kPart = 8192;      // elements that a block sums
inline constexpr std::int64_t kRowsOfPart = 64;  // rows that a thread sums

// parts[p] = the sum of value(i) over the p-th kPart of [0, count).
template <typename Value>
__device__ __forceinline__ void sum_in_parts(const Span<double>& parts, std::int64_t count, const Value& value) {
  for_each_block(parts.count, [&](std::int64_t p) {
    const std::int64_t first = p * kPart;
    const std::int64_t size = count - first < kPart ? count - first : kPart;
    const double sum = sum_in_block<double>(size, [&](std::int64_t i) { return value(first + i); });
    if (thread_index() == 0) parts.set(p, sum);
  });
}

// parts[p][c] = the sum of value(row * columns + c, row) over the p-th kRowsOfPart rows.
template <typename Value>
__device__ __forceinline__ void sum_columns_in_parts(const Span<double>& parts, std::int64_t rows, std::int64_t columns,
                                                     const Value& value) {
  for_each(parts.count, [&](std::int64_t i) {
    const std::int64_t first = i / columns * kRowsOfPart, c = i % columns;
    const std::int64_t end = rows - first < kRowsOfPart ? rows : first + kRowsOfPart;
    double sum = 0;
    for_each_of(
        first, 1, end, [&](std::int64_t r) { return value(r * columns + c, r); },
        [&](std::int64_t, double term) { sum += term; });
    parts.set(i, sum);
  });
}

// out[c] (+)= the sum of parts[p][c] over p.
void sum_column_parts(const Launch& launch, Into out, const double* parts, std::int64_t number, std::int64_t columns);
// *out (+)= factor * sum of parts / divisor.
void sum_parts(const Launch& launch, Into out, const double* parts, std::int64_t number, double factor, double divisor);

}  // namespace lockstep::cuda
