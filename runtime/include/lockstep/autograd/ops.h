// SPDX-License-Identifier: Apache-2.0
// Differentiable operations. An operation records itself on the tape if one of its inputs requires a gradient and
// grad_enabled() is true.
//
// Each operation's result is at least as close to the exact formula, computed in double, as PyTorch's float32 result on
// the CPU. An operation's result has NaN and infinity where PyTorch's result has NaN and infinity. In layer_norm and in
// the gradient of gelu, PyTorch gives NaN if the square of a finite value overflows; lockstep gives the number that the
// formula gives.
//
// Values are f32, indices i64. Tensors of 0 rows work everywhere. An operation broadcasts its inputs only if the
// operation's comment mentions broadcasting. If shapes don't fit, an operation throws InvalidArgument with a message
// that names the operation and both shapes.
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
// Returns GELU of each element, in the tanh approximation that GPT-2 uses.
LOCKSTEP_API Tensor gelu(const Tensor& x);

// Returns x, of shape [..., C], with the vector `row`, of shape [C], added to each row.
LOCKSTEP_API Tensor add_row(const Tensor& x, const Tensor& row);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator*(const Tensor& a, float factor) { return scale(a, factor); }
inline Tensor operator*(float factor, const Tensor& a) { return scale(a, factor); }

// --- sums, of shape [] ---
LOCKSTEP_API Tensor sum(const Tensor& x);
// Returns the mean; 0 over no elements.
LOCKSTEP_API Tensor mean(const Tensor& x);

// Returns a tensor of shape `shape` with the elements of x in the same order. The result shares the memory of x.
LOCKSTEP_API Tensor reshape(const Tensor& x, const Shape& shape);
// Returns a copy of the transpose of x: x has shape [R, C], and the result [C, R].
LOCKSTEP_API Tensor transpose(const Tensor& x);
// Returns rows [begin, end) of dimension 0. The result shares the memory.
LOCKSTEP_API Tensor rows(const Tensor& x, std::int64_t begin, std::int64_t end);
// Returns `times` copies of x along a new first dimension, such as the position embeddings of a batch: x has shape [T,
// ...], and the result [times, T, ...].
LOCKSTEP_API Tensor repeat(const Tensor& x, std::int64_t times);

// --- matrices ---

// Returns the matrix product a [M, K] x b [K, N], of shape [M, N].
LOCKSTEP_API Tensor matmul(const Tensor& a, const Tensor& b);
// Returns x times weight plus bias: x has shape [..., I], weight [I, O] and bias [O], and the result has shape [...,
// O]. `bias` may be undefined. `weight` is the transpose of the weight of PyTorch's Linear, so that linear() is as fast
// as matmul(), even if x has few rows.
LOCKSTEP_API Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias);

// Normalises the last dimension of x to mean 0 and (biased) variance 1, multiplies the result by `gain` [C] and adds
// `bias` [C]. See Ba et al., arXiv:1607.06450.
LOCKSTEP_API Tensor layer_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, float epsilon = 1e-5f);
// Returns the rows of `table`, of shape [V, C], that `indices`, of shape [...], select; the result has shape [..., C].
// Throws InvalidArgument if an index is not in [0, V); the message names the position and the value of the index.
LOCKSTEP_API Tensor embedding(const Tensor& table, const Tensor& indices);
// Returns causal multi-head self-attention: softmax(q k^T / sqrt(head size)) v, where each position attends to itself
// and to earlier positions. `qkv` has shape [B, T, 3C] and holds each position's query, key and value next to each
// other; the result has shape [B, T, C]. C is a multiple of `heads`.
LOCKSTEP_API Tensor causal_self_attention(const Tensor& qkv, std::int64_t heads);

// RandomSource holds the inputs that random operations, such as dropout(), need in one forward pass. `sample_ids` are
// the global ids of the batch's samples. A random operation divides the elements of its input among the samples in
// equal consecutive parts; the input's first dimension is the batch, or the batch times the positions.
struct RandomSource {
  RandomKey key = {};
  std::shared_ptr<const std::vector<std::int64_t>> sample_ids = {};
};
// Sets each element of x to zero with probability p, which is in [0, 1), and divides the other elements by 1 - p. Which
// elements become zero depends only on (seed, layer, step, sample id, element within the sample), not on rank,
// micro-batch or place in the batch.
LOCKSTEP_API Tensor dropout(const Tensor& x, float p, const RandomSource& source);

// --- losses, to a scalar ---
struct CrossEntropyOptions {
  // The target value that marks a row that cross_entropy() leaves out of the mean.
  std::int64_t ignore_index = -100;
};
// Returns the mean of -log softmax(logits)[target] over the rows whose target is not `ignore_index`, or 0 if there are
// no such rows. `logits` has shape [..., V], and `targets` holds one i64 per row of logits. Throws InvalidArgument if a
// target is not in [0, V); the message names the row and the value of the target.
LOCKSTEP_API Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options = {});
// Returns the mean of the squared differences between the elements of a and b, or 0 if a and b have no elements.
LOCKSTEP_API Tensor mse_loss(const Tensor& a, const Tensor& b);

// --- without a gradient ---

// Returns, for each row, the index of the largest value in the last dimension of x, or the first such index if several
// values are the largest; NaN counts as the largest value. If x has shape [..., C], the result is an i64 tensor of
// shape [...] on the CPU. Waits for a device. Throws InvalidArgument for C = 0.
LOCKSTEP_API Tensor argmax(const Tensor& x);
// Returns the fraction of the rows whose argmax() equals the target, or NaN if there are no rows. `logits` and
// `targets` have the shapes that cross_entropy() requires; unlike cross_entropy(), accuracy() counts every row. To
// compute the accuracy over all ranks, add each batch to a Metrics: metrics.add("accuracy", accuracy(logits, y) *
// rows, rows).
LOCKSTEP_API double accuracy(const Tensor& logits, const Tensor& targets);

}  // namespace lockstep
