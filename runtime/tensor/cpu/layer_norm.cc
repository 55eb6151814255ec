#include <cmath>

#include "runtime/tensor/cpu/clones.h"
#include "runtime/tensor/cpu/cpu_kernels.h"

namespace lockstep::cpu {

LOCKSTEP_CLONES void layer_norm(float* out, float* mean, float* rstd, const float* x, const float* gain,
                                const float* bias, const LayerNormShape& shape) {
  const std::int64_t columns = shape.columns;
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const float* row = x + r * columns;
    float* target = out + r * columns;
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (std::int64_t c = 0; c < columns; ++c) total += row[c];
    const float m = total / static_cast<float>(columns);
    // Second pass: the variance of x - m keeps its digits where E[x^2] - m^2 would lose them.
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (std::int64_t c = 0; c < columns; ++c) squares += (row[c] - m) * (row[c] - m);
    const float s = 1.0f / std::sqrt(squares / static_cast<float>(columns) + shape.epsilon);
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) target[c] = (row[c] - m) * s * gain[c] + bias[c];
    mean[r] = m;
    rstd[r] = s;
  }
}

// With n = (x - mean) rstd and h = dy gain: dx = rstd (h - mean(h) - n mean(h n)).
LOCKSTEP_CLONES void layer_norm_backward(Into dx, Into dgain, Into dbias, const float* dy, const float* x,
                                         const float* mean, const float* rstd, const float* gain,
                                         const LayerNormShape& shape) {
  const std::int64_t columns = shape.columns;
  for (const Into& parameter : {dgain, dbias}) {
    if (parameter.data != nullptr && !parameter.add) fill(parameter.data, 0.0f, columns);
  }
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const float* g = dy + r * columns;
    const float* row = x + r * columns;
    const float m = mean[r], s = rstd[r];
    if (dgain.data != nullptr) {
      float* target = dgain.data;
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) target[c] += g[c] * (row[c] - m) * s;
    }
    if (dbias.data != nullptr) {
      float* target = dbias.data;
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) target[c] += g[c];
    }
    if (dx.data == nullptr) continue;
    float h = 0, hn = 0;
#pragma omp simd reduction(+ : h, hn)
    for (std::int64_t c = 0; c < columns; ++c) {
      h += g[c] * gain[c];
      hn += g[c] * gain[c] * (row[c] - m) * s;
    }
    h /= static_cast<float>(columns);
    hn /= static_cast<float>(columns);
    float* target = dx.data + r * columns;
    if (dx.add) {
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) target[c] += s * (g[c] * gain[c] - h - (row[c] - m) * s * hn);
    } else {
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) target[c] = s * (g[c] * gain[c] - h - (row[c] - m) * s * hn);
    }
  }
}

}  // namespace lockstep::cpu
