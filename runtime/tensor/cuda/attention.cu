// SPDX-License-Identifier: Apache-2.0
// The products of all heads of all samples are one batch. For that each head's matrix has to begin as far behind the
// last, which it does not in packed rows: it is copied together first, and the results are dealt out again.
#include <cmath>

#include "runtime/tensor/cuda/cuda_kernels.h"
#include "runtime/tensor/cuda/launch.cuh"

namespace lockstep::cuda {
namespace {

// Where element c of row `r`, which is (b, t), of packed rows lies by heads: part, b, head, t, element of the head.
// Packed rows have `parts` of heads * head_size columns side by side.
struct ByHeads {
  std::int64_t rows;  // batch * time
  int time;
  int heads;
  int head_size;
  int parts;

  int columns() const { return parts * heads * head_size; }
  __device__ __forceinline__ std::int64_t operator()(std::int64_t r, std::int64_t c) const {
    const int channels = heads * head_size, column = static_cast<int>(c);
    const int part = column / channels, channel = column % channels;
    const int head = channel / head_size, element = channel % head_size;
    const std::int64_t b = r / time, t = r % time;
    return part * (rows * channels) + ((b * heads + head) * time + t) * head_size + element;
  }
};

__global__ void split_heads(Span<float> out, Span<const float> packed, std::int64_t columns, ByHeads by_heads) {
  for_each_block(by_heads.rows, [&](std::int64_t r) {
    for_each_in_block(
        columns, [&](std::int64_t c) { return packed[r * columns + c]; },
        [&](std::int64_t c, float value) { out.set(by_heads(r, c), value); });
  });
}

__global__ void join_heads(Span<float> packed, bool add, Span<const float> heads, std::int64_t columns,
                           ByHeads by_heads) {
  for_each_block(by_heads.rows, [&](std::int64_t r) {
    for_each_in_block(
        columns,
        [&](std::int64_t c) {
          const float value = heads[by_heads(r, c)];
          return add ? packed[r * columns + c] + value : value;
        },
        [&](std::int64_t c, float value) { packed.set(r * columns + c, value); });
  });
}

// Row i keeps its first i + 1 scores, as a softmax; the others become 0.
__global__ void causal_softmax(Span<float> scores, std::int64_t time) {
  for_each_block(scores.count / time, [&](std::int64_t r) {
    const std::int64_t row = r * time, count = r % time + 1;
    float most = scores[row];
    for_each_in_block(
        count, [&](std::int64_t j) { return scores[row + j]; },
        [&](std::int64_t, float score) { most = Larger{}(most, score); });
    most = over_block(most, Larger{});
    const double total = sum_in_block<double>(count, [&](std::int64_t j) {
      const float power = expf(scores[row + j] - most);
      return static_cast<double>(power);
    });
    const auto factor = static_cast<float>(1.0 / total);
    for_each_in_block(
        time, [&](std::int64_t j) { return j < count ? expf(scores[row + j] - most) * factor : 0.0f; },
        [&](std::int64_t j, float weight) { scores.set(row + j, weight); });
  });
}

// d(scores) from d(weights), in place: w (dw - sum of w dw), 0 above the diagonal.
__global__ void causal_softmax_backward(Span<float> gradient, Span<const float> weights, std::int64_t time) {
  for_each_block(gradient.count / time, [&](std::int64_t r) {
    const std::int64_t row = r * time, count = r % time + 1;
    const auto dot = static_cast<float>(sum_in_block<double>(count, [&](std::int64_t j) {
      return static_cast<double>(gradient[row + j]) * static_cast<double>(weights[row + j]);
    }));
    for_each_in_block(
        time, [&](std::int64_t j) { return j < count ? weights[row + j] * (gradient[row + j] - dot) : 0.0f; },
        [&](std::int64_t j, float slope) { gradient.set(row + j, slope); });
  });
}

const Kernel kCausalSoftmax("causal_softmax", causal_softmax);
const Kernel kCausalSoftmaxBackward("causal_softmax_backward", causal_softmax_backward);
const Kernel kSplitHeads("split_heads", split_heads);
const Kernel kJoinHeads("join_heads", join_heads);

ByHeads by_heads(const AttentionShape& shape, int parts) {
  return {shape.batch * shape.time, static_cast<int>(shape.time), static_cast<int>(shape.heads),
          static_cast<int>(shape.head_size), parts};
}
void split(const Launch& launch, float* out, const float* packed, const ByHeads& by_heads) {
  const std::int64_t columns = by_heads.columns(), count = by_heads.rows * columns;
  launch(kSplitHeads, rows_of(by_heads.rows, columns), writes(out, count), reads(packed, count), columns, by_heads);
}
void join(const Launch& launch, Into packed, const float* heads, const ByHeads& by_heads) {
  const std::int64_t columns = by_heads.columns(), count = by_heads.rows * columns;
  launch(kJoinHeads, rows_of(by_heads.rows, columns), writes(packed.data, count), packed.add, reads(heads, count),
         columns, by_heads);
}

}  // namespace

void CudaKernels::attention(float* out, float* weights, const float* qkv, const AttentionShape& shape) {
  const std::int64_t time = shape.time, size = shape.head_size, matrices = shape.batch * shape.heads;
  const std::int64_t count = matrices * time * size, square = time * time;
  if (count == 0) return;
  auto* const q = scratch<float>(4 * count);
  float *const k = q + count, *const v = k + count, *const y = v + count;
  split(*launch_, q, qkv, by_heads(shape, 3));
  batched_gemm({.rows = time,
                .columns = time,
                .inner = size,
                .alpha = 1.0f / std::sqrt(static_cast<float>(size)),
                .a = {q, size},
                .b = {.data = k, .stride = size, .transposed = true},
                .c = {weights, false},
                .ldc = time},
               {.count = matrices, .a = time * size, .b = time * size, .c = square});
  (*launch_)(kCausalSoftmax, rows_of(matrices * time, time), writes(weights, matrices * square), time);
  batched_gemm({.rows = time,
                .columns = size,
                .inner = time,
                .a = {weights, time},
                .b = {v, size},
                .c = {y, false},
                .ldc = size},
               {.count = matrices, .a = square, .b = time * size, .c = time * size});
  join(*launch_, {out, false}, y, by_heads(shape, 1));
}

void CudaKernels::attention_backward(Into dqkv, const float* dout, const float* weights, const float* qkv,
                                     const AttentionShape& shape) {
  const std::int64_t time = shape.time, size = shape.head_size, matrices = shape.batch * shape.heads;
  const std::int64_t count = matrices * time * size, square = time * time;
  if (count == 0) return;
  const float factor = 1.0f / std::sqrt(static_cast<float>(size));
  auto* const q = scratch<float>(7 * count + matrices * square);
  float *const k = q + count, *const v = k + count, *const dy = v + count;
  float *const dq = dy + count, *const dk = dq + count, *const dv = dk + count, *const dw = dv + count;
  split(*launch_, q, qkv, by_heads(shape, 3));
  split(*launch_, dy, dout, by_heads(shape, 1));
  const Batch to_size{.count = matrices, .a = square, .b = time * size, .c = time * size};
  batched_gemm({.rows = time,
                .columns = size,
                .inner = time,
                .a = {.data = weights, .stride = time, .transposed = true},
                .b = {dy, size},
                .c = {dv, false},
                .ldc = size},
               to_size);
  batched_gemm({.rows = time,
                .columns = time,
                .inner = size,
                .a = {dy, size},
                .b = {.data = v, .stride = size, .transposed = true},
                .c = {dw, false},
                .ldc = time},
               {.count = matrices, .a = time * size, .b = time * size, .c = square});
  (*launch_)(kCausalSoftmaxBackward, rows_of(matrices * time, time), writes(dw, matrices * square),
             reads(weights, matrices * square), time);
  batched_gemm({.rows = time,
                .columns = size,
                .inner = time,
                .alpha = factor,
                .a = {dw, time},
                .b = {k, size},
                .c = {dq, false},
                .ldc = size},
               to_size);
  batched_gemm({.rows = time,
                .columns = size,
                .inner = time,
                .alpha = factor,
                .a = {.data = dw, .stride = time, .transposed = true},
                .b = {q, size},
                .c = {dk, false},
                .ldc = size},
               to_size);
  join(*launch_, dqkv, dq, by_heads(shape, 3));
}

}  // namespace lockstep::cuda
