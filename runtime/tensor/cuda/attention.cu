// SPDX-License-Identifier: Apache-2.0
// The products of all heads of many samples are one batch. For that each head's matrix has to begin as far behind the
// last, which it does not in packed rows: it is copied together first, and the results are dealt out again.
#include <algorithm>
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

// As many samples together as scratch memory of 256 MiB is enough for, and no more matrices than keep a GPU busy:
// body(first, shape of the group).
template <typename Body>
void for_each_group(const AttentionShape& shape, std::int64_t scratch_of_sample, const Body& body) {
  constexpr std::int64_t kMostScratch = std::int64_t{64} << 20, kMostMatrices = 4096;
  const std::int64_t most = std::min(kMostScratch / scratch_of_sample, kMostMatrices / shape.heads);
  AttentionShape group = shape;
  for (std::int64_t first = 0; first < shape.batch; first += group.batch) {
    group.batch = std::min(std::max<std::int64_t>(most, 1), shape.batch - first);
    body(first, group);
  }
}

}  // namespace

void CudaKernels::attention(float* out, float* weights, const float* qkv, const AttentionShape& shape) {
  const std::int64_t time = shape.time, size = shape.head_size, square = time * time;
  const std::int64_t sample = shape.heads * time * size;
  if (shape.batch * sample == 0) return;
  for_each_group(shape, 4 * sample, [&](std::int64_t first, const AttentionShape& group) {
    const std::int64_t matrices = group.batch * group.heads, count = group.batch * sample;
    auto* const q = scratch<float>(4 * count);
    float *const k = q + count, *const v = k + count, *const y = v + count;
    float* const w = weights + first * shape.heads * square;
    split(*launch_, q, qkv + 3 * first * sample, by_heads(group, 3));
    batched_gemm({.rows = time,
                  .columns = time,
                  .inner = size,
                  .alpha = 1.0f / std::sqrt(static_cast<float>(size)),
                  .a = {q, size},
                  .b = {.data = k, .stride = size, .transposed = true},
                  .c = {w, false},
                  .ldc = time},
                 {.count = matrices, .a = time * size, .b = time * size, .c = square});
    (*launch_)(kCausalSoftmax, rows_of(matrices * time, time), writes(w, matrices * square), time);
    batched_gemm(
        {.rows = time, .columns = size, .inner = time, .a = {w, time}, .b = {v, size}, .c = {y, false}, .ldc = size},
        {.count = matrices, .a = square, .b = time * size, .c = time * size});
    join(*launch_, {out + first * sample, false}, y, by_heads(group, 1));
  });
}

void CudaKernels::attention_backward(Into dqkv, const float* dout, const float* weights, const float* qkv,
                                     const AttentionShape& shape) {
  const std::int64_t time = shape.time, size = shape.head_size, square = time * time;
  const std::int64_t sample = shape.heads * time * size;
  if (shape.batch * sample == 0) return;
  const float factor = 1.0f / std::sqrt(static_cast<float>(size));
  for_each_group(shape, 7 * sample + shape.heads * square, [&](std::int64_t first, const AttentionShape& group) {
    const std::int64_t matrices = group.batch * group.heads, count = group.batch * sample;
    auto* const q = scratch<float>(7 * count + matrices * square);
    float *const k = q + count, *const v = k + count, *const dy = v + count;
    float *const dq = dy + count, *const dk = dq + count, *const dv = dk + count, *const dw = dv + count;
    const float* const w = weights + first * shape.heads * square;
    split(*launch_, q, qkv + 3 * first * sample, by_heads(group, 3));
    split(*launch_, dy, dout + first * sample, by_heads(group, 1));
    const Batch to_size{.count = matrices, .a = square, .b = time * size, .c = time * size};
    batched_gemm({.rows = time,
                  .columns = size,
                  .inner = time,
                  .a = {.data = w, .stride = time, .transposed = true},
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
               reads(w, matrices * square), time);
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
    join(*launch_, {dqkv.data + 3 * first * sample, dqkv.add}, dq, by_heads(group, 3));
  });
}

}  // namespace lockstep::cuda
