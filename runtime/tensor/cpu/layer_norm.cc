// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "runtime/tensor/cpu/cpu_kernels.h"
#include "runtime/tensor/cpu/lane_sums.h"
#include "runtime/tensor/cpu/strip_sums.h"

namespace lockstep::cpu {
namespace {

// x - mean in float: what the mean's nearest float leaves of it goes in a second difference. Inputs of a large common
// offset keep their digits.
class Centred {
 public:
  explicit Centred(double mean)
      : shift_(static_cast<float>(mean)), rest_(static_cast<float>(mean - static_cast<double>(shift_))) {}
  LOCKSTEP_INLINE float operator()(float x) const { return (x - shift_) - rest_; }

 private:
  float shift_;
  float rest_;
};

}  // namespace

// Sums are in double: squares of every finite input stay finite, as a float's do not above 1e19.
LOCKSTEP_CLONES void layer_norm(float* out, double* mean, float* rstd, const float* x, const float* gain,
                                const float* bias, const LayerNormShape& shape) {
  const std::int64_t columns = shape.columns;
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const float* row = x + r * columns;
    float* target = out + r * columns;
    const auto total = sum_in_lanes<double>(columns, [=](std::int64_t c) { return static_cast<double>(row[c]); });
    const double m = total / static_cast<double>(columns);
    // Second pass: the variance of x - m keeps its digits where E[x^2] - m^2 would lose them.
    const auto squares = sum_in_lanes<double>(columns, [=](std::int64_t c) {
      const double difference = static_cast<double>(row[c]) - m;
      return difference * difference;
    });
    const double variance = squares / static_cast<double>(columns) + static_cast<double>(shape.epsilon);
    const auto s = static_cast<float>(1.0 / std::sqrt(variance));
    const Centred centred(m);
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) target[c] = centred(row[c]) * s * gain[c] + bias[c];
    mean[r] = m;
    rstd[r] = s;
  }
}

// With n = (x - mean) rstd and h = dy gain: dx = rstd (h - mean(h) - n mean(h n)), dgain = sum of dy n over the rows.
// n first: the product of a gradient and a difference may overflow where that with n does not.
LOCKSTEP_CLONES void layer_norm_backward(Into dx, Into dgain, Into dbias, const float* dy, const float* x,
                                         const double* mean, const float* rstd, const float* gain,
                                         const LayerNormShape& shape) {
  const std::int64_t columns = shape.columns;
  if (dbias.data != nullptr) sum_rows(dbias, dy, shape.rows, columns);
  if (dgain.data != nullptr) {
    sum_strips(dgain, shape.rows, columns, [=](std::int64_t r, std::int64_t c) {
      return dy[r * columns + c] * (Centred(mean[r])(x[r * columns + c]) * rstd[r]);
    });
  }
  if (dx.data == nullptr) return;
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const float* g = dy + r * columns;
    const float* row = x + r * columns;
    const Centred centred(mean[r]);
    const float s = rstd[r];
    const auto mean_of = [=](const auto& value) {
      return sum_in_lanes<float>(columns, value) / static_cast<float>(columns);
    };
    const float h = mean_of([=](std::int64_t c) { return g[c] * gain[c]; });
    const float hn = mean_of([=](std::int64_t c) { return g[c] * gain[c] * (centred(row[c]) * s); });
    float* target = dx.data + r * columns;
    if (dx.add) {
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) target[c] += s * (g[c] * gain[c] - h - centred(row[c]) * s * hn);
    } else {
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) target[c] = s * (g[c] * gain[c] - h - centred(row[c]) * s * hn);
    }
  }
}

}  // namespace lockstep::cpu
