// SPDX-License-Identifier: Apache-2.0
// Causal attention, one (sample, head) at a time: scores fit the cache, products are small matrix products over parts
// of the packed rows.
#include <cmath>

#include "runtime/tensor/cpu/cpu_kernels.h"
#include "runtime/tensor/cpu/lane_sums.h"
#include "runtime/tensor/cpu/vector_math.h"

namespace lockstep::cpu {
namespace {

// Scratch memory from the cache of this thread.
class Scratch {
 public:
  explicit Scratch(std::int64_t count)
      : bytes_(static_cast<std::size_t>(count) * sizeof(float)), data_(static_cast<float*>(allocate(bytes_))) {}
  ~Scratch() { release(data_, bytes_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  float* get() const { return data_; }

 private:
  std::size_t bytes_;
  float* data_;
};

// Row i keeps its first i + 1 scores, as a softmax; the others become 0.
LOCKSTEP_CLONES void causal_softmax(float* scores, std::int64_t time) {
  for (std::int64_t i = 0; i < time; ++i) {
    float* row = scores + i * time;
    const std::int64_t count = i + 1;
    float largest = row[0];
#pragma omp simd reduction(max : largest)
    for (std::int64_t j = 0; j < count; ++j) largest = row[j] > largest ? row[j] : largest;
#pragma omp simd
    for (std::int64_t j = 0; j < count; ++j) row[j] = fast_exp(row[j] - largest);
    const auto total = sum_in_lanes<double>(count, [=](std::int64_t j) { return static_cast<double>(row[j]); });
    const auto factor = static_cast<float>(1.0 / total);
#pragma omp simd
    for (std::int64_t j = 0; j < count; ++j) row[j] *= factor;
    for (std::int64_t j = count; j < time; ++j) row[j] = 0.0f;
  }
}

// d(scores) from d(weights), in place: w (dw - sum of w dw), 0 above the diagonal.
LOCKSTEP_CLONES void causal_softmax_backward(float* gradient, const float* weights, std::int64_t time) {
  for (std::int64_t i = 0; i < time; ++i) {
    float* g = gradient + i * time;
    const float* w = weights + i * time;
    const std::int64_t count = i + 1;
    const auto total = sum_in_lanes<double>(
        count, [=](std::int64_t j) { return static_cast<double>(g[j]) * static_cast<double>(w[j]); });
    const auto dot = static_cast<float>(total);
#pragma omp simd
    for (std::int64_t j = 0; j < count; ++j) g[j] = w[j] * (g[j] - dot);
    for (std::int64_t j = count; j < time; ++j) g[j] = 0.0f;
  }
}

}  // namespace

void attention(float* out, float* weights, const float* qkv, const AttentionShape& shape) {
  const std::int64_t time = shape.time, size = shape.head_size, channels = shape.heads * size, wide = 3 * channels;
  const float factor = 1.0f / std::sqrt(static_cast<float>(size));
  if (time == 0) return;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const float* q = qkv + b * time * wide + h * size;
      const float* k = q + channels;
      const float* v = k + channels;
      float* w = weights + (b * shape.heads + h) * time * time;
      gemm({.rows = time,
            .columns = time,
            .inner = size,
            .alpha = factor,
            .a = {q, wide},
            .b = {.data = k, .stride = wide, .transposed = true},
            .c = {w, false},
            .ldc = time});
      causal_softmax(w, time);
      gemm({.rows = time,
            .columns = size,
            .inner = time,
            .a = {w, time},
            .b = {v, wide},
            .c = {out + b * time * channels + h * size, false},
            .ldc = channels});
    }
  }
}

void attention_backward(Into dqkv, const float* dout, const float* weights, const float* qkv,
                        const AttentionShape& shape) {
  const std::int64_t time = shape.time, size = shape.head_size, channels = shape.heads * size, wide = 3 * channels;
  if (shape.batch * time * channels == 0) return;
  const float factor = 1.0f / std::sqrt(static_cast<float>(size));
  const Scratch scratch(time * time);
  float* dw = scratch.get();
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const float* q = qkv + b * time * wide + h * size;
      const float* k = q + channels;
      const float* v = k + channels;
      const float* w = weights + (b * shape.heads + h) * time * time;
      const float* dy = dout + b * time * channels + h * size;
      float* dq = dqkv.data + b * time * wide + h * size;
      float* dk = dq + channels;
      float* dv = dk + channels;
      gemm({.rows = time,
            .columns = size,
            .inner = time,
            .a = {.data = w, .stride = time, .transposed = true},
            .b = {dy, channels},
            .c = {dv, dqkv.add},
            .ldc = wide});
      gemm({.rows = time,
            .columns = time,
            .inner = size,
            .a = {dy, channels},
            .b = {.data = v, .stride = wide, .transposed = true},
            .c = {dw, false},
            .ldc = time});
      causal_softmax_backward(dw, w, time);
      gemm({.rows = time,
            .columns = size,
            .inner = time,
            .alpha = factor,
            .a = {dw, time},
            .b = {k, wide},
            .c = {dq, dqkv.add},
            .ldc = wide});
      gemm({.rows = time,
            .columns = size,
            .inner = time,
            .alpha = factor,
            .a = {.data = dw, .stride = time, .transposed = true},
            .b = {q, wide},
            .c = {dk, dqkv.add},
            .ldc = wide});
    }
  }
}

}  // namespace lockstep::cpu
