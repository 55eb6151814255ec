// SPDX-License-Identifier: Apache-2.0
// The products of all heads of a sample are one batch; between them a block has a row of scores.
#include <cmath>

#include "runtime/tensor/cuda/cuda_kernels.h"
#include "runtime/tensor/cuda/launch.cuh"

namespace lockstep::cuda {
namespace {

// Row i keeps its first i + 1 scores, as a softmax; the others become 0.
__global__ void causal_softmax(Span<float> scores, std::int64_t time) {
  for_each_block(scores.count / time, [&](std::int64_t r) {
    const std::int64_t row = r * time, count = r % time + 1;
    float most = scores[row];
    for_each_in_block(count, [&](std::int64_t j) { most = Larger{}(most, scores[row + j]); });
    most = over_block(most, Larger{});
    const double total = sum_in_block<double>(count, [&](std::int64_t j) {
      const float power = expf(scores[row + j] - most);
      return static_cast<double>(power);
    });
    const auto factor = static_cast<float>(1.0 / total);
    for_each_in_block(
        time, [&](std::int64_t j) { scores.set(row + j, j < count ? expf(scores[row + j] - most) * factor : 0.0f); });
  });
}

// d(scores) from d(weights), in place: w (dw - sum of w dw), 0 above the diagonal.
__global__ void causal_softmax_backward(Span<float> gradient, Span<const float> weights, std::int64_t time) {
  for_each_block(gradient.count / time, [&](std::int64_t r) {
    const std::int64_t row = r * time, count = r % time + 1;
    const auto dot = static_cast<float>(sum_in_block<double>(count, [&](std::int64_t j) {
      return static_cast<double>(gradient[row + j]) * static_cast<double>(weights[row + j]);
    }));
    for_each_in_block(time, [&](std::int64_t j) {
      gradient.set(row + j, j < count ? weights[row + j] * (gradient[row + j] - dot) : 0.0f);
    });
  });
}

const Kernel kCausalSoftmax("causal_softmax", causal_softmax);
const Kernel kCausalSoftmaxBackward("causal_softmax_backward", causal_softmax_backward);

}  // namespace

void CudaKernels::attention(float* out, float* weights, const float* qkv, const AttentionShape& shape) {
  const std::int64_t time = shape.time, size = shape.head_size, channels = shape.heads * size, wide = 3 * channels;
  if (shape.batch * time * channels == 0) return;
  const float factor = 1.0f / std::sqrt(static_cast<float>(size));
  const std::int64_t squares = shape.heads * time * time;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const float* q = qkv + b * time * wide;
    batched_gemm({.rows = time,
                  .columns = time,
                  .inner = size,
                  .alpha = factor,
                  .a = {q, wide},
                  .b = {.data = q + channels, .stride = wide, .transposed = true},
                  .c = {weights + b * squares, false},
                  .ldc = time},
                 {.count = shape.heads, .a = size, .b = size, .c = time * time});
  }
  (*launch_)(kCausalSoftmax, {shape.batch * shape.heads * time, time}, writes(weights, shape.batch * squares), time);
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    batched_gemm({.rows = time,
                  .columns = size,
                  .inner = time,
                  .a = {weights + b * squares, time},
                  .b = {qkv + b * time * wide + 2 * channels, wide},
                  .c = {out + b * time * channels, false},
                  .ldc = channels},
                 {.count = shape.heads, .a = time * time, .b = size, .c = size});
  }
}

void CudaKernels::attention_backward(Into dqkv, const float* dout, const float* weights, const float* qkv,
                                     const AttentionShape& shape) {
  const std::int64_t time = shape.time, size = shape.head_size, channels = shape.heads * size, wide = 3 * channels;
  if (shape.batch * time * channels == 0) return;
  const float factor = 1.0f / std::sqrt(static_cast<float>(size));
  const std::int64_t square = time * time;
  auto* const dw = scratch<float>(shape.heads * square);
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const float* q = qkv + b * time * wide;
    const float* k = q + channels;
    const float* v = k + channels;
    const float* w = weights + b * shape.heads * square;
    const float* dy = dout + b * time * channels;
    float* dq = dqkv.data + b * time * wide;
    float* dk = dq + channels;
    float* dv = dk + channels;
    batched_gemm({.rows = time,
                  .columns = size,
                  .inner = time,
                  .a = {.data = w, .stride = time, .transposed = true},
                  .b = {dy, channels},
                  .c = {dv, dqkv.add},
                  .ldc = wide},
                 {.count = shape.heads, .a = square, .b = size, .c = size});
    batched_gemm({.rows = time,
                  .columns = time,
                  .inner = size,
                  .a = {dy, channels},
                  .b = {.data = v, .stride = wide, .transposed = true},
                  .c = {dw, false},
                  .ldc = time},
                 {.count = shape.heads, .a = size, .b = size, .c = square});
    (*launch_)(kCausalSoftmaxBackward, {shape.heads * time, time}, writes(dw, shape.heads * square),
               reads(w, shape.heads * square), time);
    batched_gemm({.rows = time,
                  .columns = size,
                  .inner = time,
                  .alpha = factor,
                  .a = {dw, time},
                  .b = {k, wide},
                  .c = {dq, dqkv.add},
                  .ldc = wide},
                 {.count = shape.heads, .a = square, .b = size, .c = size});
    batched_gemm({.rows = time,
                  .columns = size,
                  .inner = time,
                  .alpha = factor,
                  .a = {.data = dw, .stride = time, .transposed = true},
                  .b = {q, wide},
                  .c = {dk, dqkv.add},
                  .ldc = wide},
                 {.count = shape.heads, .a = square, .b = size, .c = size});
  }
}

}  // namespace lockstep::cuda
