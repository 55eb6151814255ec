// SPDX-License-Identifier: Apache-2.0
// Differentiable operations. An operation records itself if an input requires a gradient and recording is on.
//
// Results are as near to the formula in double as PyTorch's float32 on the CPU, or nearer, with NaN and infinity in the
// same places. The only exception: if a square of finite values overflows in PyTorch and gives NaN (layer_norm, gelu's
// gradient), lockstep gives the number.
//
// Values are f32, indices i64. Tensors of 0 rows work everywhere. Operations broadcast only if their comments say so.
// Operations throw InvalidArgument, which names the operation and both shapes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/base/random.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// --- element by element, equal shapes ---
LOCKSTEP_API Tensor add(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor sub(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor mul(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor scale(const Tensor& a, float factor);
LOCKSTEP_API Tensor relu(const Tensor& x);
LOCKSTEP_API Tensor tanh(const Tensor& x);
// Returns gelu in its tanh form, as in GPT-2.
LOCKSTEP_API Tensor gelu(const Tensor& x);

// Adds `row` [C] to each row of x [..., C].
LOCKSTEP_API Tensor add_row(const Tensor& x, const Tensor& row);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator*(const Tensor& a, float factor) { return scale(a, factor); }
inline Tensor operator*(float factor, const Tensor& a) { return scale(a, factor); }

// --- sums, to a scalar of shape [] ---
LOCKSTEP_API Tensor sum(const Tensor& x);
// Returns the mean; 0 over no elements.
LOCKSTEP_API Tensor mean(const Tensor& x);

// Returns the same elements, in the same order, in another shape. The result shares the memory.
LOCKSTEP_API Tensor reshape(const Tensor& x, const Shape& shape);
// Copies x [R, C] into its transpose [C, R].
LOCKSTEP_API Tensor transpose(const Tensor& x);
// Returns rows [begin, end) of dimension 0. The result shares the memory.
LOCKSTEP_API Tensor rows(const Tensor& x, std::int64_t begin, std::int64_t end);
// Repeats x [T, ...] `times` along a new first dimension: [times, T, ...]. For position embeddings of a batch.
LOCKSTEP_API Tensor repeat(const Tensor& x, std::int64_t times);

// --- matrices ---
// Returns the matrix product a [M, K] x b [K, N], of shape [M, N].
LOCKSTEP_API Tensor matmul(const Tensor& a, const Tensor& b);
// Returns x [..., I] x weight [I, O] + bias [O], of shape [..., O]. `bias` may be undefined. The weight lies
// input-major (the transpose of PyTorch's Linear), so the forward product runs at the speed of a plain product, also
// for few rows.
LOCKSTEP_API Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias);

// Normalises the last dimension to mean 0 and variance 1 (biased), then applies gain [C] and bias [C]. See Ba et
// al., arXiv:1607.06450.
LOCKSTEP_API Tensor layer_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, float epsilon = 1e-5f);
// Looks up rows of table [V, C]: maps indices [...] to rows [..., C]. Throws InvalidArgument, which names the position
// and value of an index that is not in [0, V).
LOCKSTEP_API Tensor embedding(const Tensor& table, const Tensor& indices);
// Returns causal multi-head self-attention: softmax(q k^T / sqrt(head size)) v, where each position attends to itself
// and to earlier positions. Maps qkv [B, T, 3C], with query, key and value next to each other, to [B, T, C]. C is a
// multiple of `heads`.
LOCKSTEP_API Tensor causal_self_attention(const Tensor& qkv, std::int64_t heads);

// The inputs of random operations of one forward. `sample_ids` are the global ids of the batch's samples. A
// tensor's elements belong to the samples in equal parts, in order (the tensor's first dimension is the batch, or
// batch times positions).
struct RandomSource {
  RandomKey key = {};
  std::shared_ptr<const std::vector<std::int64_t>> sample_ids = {};
};
// Zeroes elements with probability p in [0, 1) and divides the other elements by 1 - p. The choice depends only on
// (seed, layer, step, sample id, element within the sample), not on rank, micro-batch or place in the batch.
LOCKSTEP_API Tensor dropout(const Tensor& x, float p, const RandomSource& source);

// --- losses, to a scalar ---
struct CrossEntropyOptions {
  // The target of rows that do not count.
  std::int64_t ignore_index = -100;
};
// Returns the mean of -log softmax(logits)[target] over the rows that count; 0 over no rows. Logits have shape [...,
// V], and targets are i64 with one element per row of logits. Throws InvalidArgument, which names row and value of a
// target that is not in [0, V).
LOCKSTEP_API Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options = {});
// Returns the mean of the squared differences; 0 over no elements.
LOCKSTEP_API Tensor mse_loss(const Tensor& a, const Tensor& b);

// --- without a gradient ---
// Returns the index of the largest value of the last dimension: the first index if several values are equal; NaN counts
// as the largest value. Maps [..., C] to i64 [...] on the CPU. Waits for a device. Throws InvalidArgument for C = 0.
LOCKSTEP_API Tensor argmax(const Tensor& x);
// Returns the share of rows whose argmax is the target; NaN over no rows. `logits` and `targets` are as in
// cross_entropy, but every row counts. For the accuracy over all ranks: metrics.add("accuracy", accuracy(logits, y) *
// rows, rows).
LOCKSTEP_API double accuracy(const Tensor& logits, const Tensor& targets);

}  // namespace lockstep
