// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "runtime/tensor/cpu/cpu_kernels.h"
#include "runtime/tensor/cpu/lane_sums.h"
#include "runtime/tensor/cpu/vector_math.h"

namespace lockstep::cpu {

LOCKSTEP_CLONES void cross_entropy(float* loss, std::int64_t* counted, float* largest, float* sums, const float* logits,
                                   const std::int64_t* targets, std::int64_t rows, std::int64_t columns,
                                   std::int64_t ignore) {
  double total = 0;
  std::int64_t rows_counted = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    largest[r] = sums[r] = 0;
    if (targets[r] == ignore) continue;
    const float* row = logits + r * columns;
    float most = row[0];
#pragma omp simd reduction(max : most)
    for (std::int64_t c = 0; c < columns; ++c) most = row[c] > most ? row[c] : most;
    // Over a whole vocabulary, so in double.
    const auto sum =
        sum_in_lanes<double>(columns, [=](std::int64_t c) { return static_cast<double>(fast_exp(row[c] - most)); });
    // The largest and the sum stay apart, here and on the way back: in one float, log sum exp, a large offset of the
    // logits would leave no digits for what is between them.
    largest[r] = most;
    sums[r] = static_cast<float>(sum);
    total += std::log(sum) - static_cast<double>(row[targets[r]] - most);
    ++rows_counted;
  }
  *loss = rows_counted == 0 ? 0.0f : static_cast<float>(total / static_cast<double>(rows_counted));
  *counted = rows_counted;
}

LOCKSTEP_CLONES void cross_entropy_backward(Into dlogits, const float* dloss, const std::int64_t* counted,
                                            const float* largest, const float* sums, const float* logits,
                                            const std::int64_t* targets, std::int64_t rows, std::int64_t columns,
                                            std::int64_t ignore) {
  const float factor = *counted == 0 ? 0.0f : *dloss / static_cast<float>(*counted);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* target = dlogits.data + r * columns;
    if (targets[r] == ignore) {
      if (!dlogits.add) fill(target, 0.0f, columns);
      continue;
    }
    const float* row = logits + r * columns;
    const float most = largest[r], share = factor / sums[r];
    if (dlogits.add) {
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) target[c] += share * fast_exp(row[c] - most);
    } else {
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) target[c] = share * fast_exp(row[c] - most);
    }
    target[targets[r]] -= factor;
  }
}

LOCKSTEP_CLONES void mse(float* loss, const float* a, const float* b, std::int64_t count) {
  const auto total = sum_in_lanes<double>(count, [=](std::int64_t i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    return difference * difference;
  });
  *loss = count == 0 ? 0.0f : static_cast<float>(total / static_cast<double>(count));
}

LOCKSTEP_CLONES void mse_backward(Into da, const float* dloss, const float* a, const float* b, float sign,
                                  std::int64_t count) {
  if (count == 0) return;
  const float factor = sign * 2.0f * *dloss / static_cast<float>(count);
  float* target = da.data;
  if (da.add) {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) target[i] += factor * (a[i] - b[i]);
  } else {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) target[i] = factor * (a[i] - b[i]);
  }
}

}  // namespace lockstep::cpu
