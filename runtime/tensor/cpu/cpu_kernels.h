// SPDX-License-Identifier: Apache-2.0
// The CPU's operations, one file per kind; table.cc makes Kernels of them. tensor/kernels.h says what each does.
#pragma once

#include "runtime/tensor/kernels.h"

namespace lockstep::cpu {

// allocator.cc: allocate and release
// Bytes that the calling thread keeps for its next allocations.
std::size_t cached_bytes();

// gemm_onednn.cc
void gemm(const Gemm& g);

// elementwise.cc
void fill(float* out, float value, std::int64_t count);
void add(Into out, const float* a, const float* b, std::int64_t count);
void multiply(Into out, const float* a, const float* b, std::int64_t count);
void scale(Into out, const float* a, float alpha, std::int64_t count);
void relu(float* out, const float* x, std::int64_t count);
void relu_backward(Into dx, const float* y, const float* dy, std::int64_t count);
void tanh(float* out, const float* x, std::int64_t count);
void tanh_backward(Into dx, const float* y, const float* dy, std::int64_t count);
void gelu(float* out, const float* x, std::int64_t count);
void gelu_backward(Into dx, const float* x, const float* dy, std::int64_t count);
void expand(Into out, const float* scalar, float alpha, std::int64_t count);

// rows.cc
void transpose(Into out, const float* a, std::int64_t rows, std::int64_t columns);
void add_row(float* out, const float* a, const float* row, std::int64_t rows, std::int64_t columns);
void sum_rows(Into out, const float* a, std::int64_t rows, std::int64_t columns);
void sum(Into out, const float* a, float alpha, std::int64_t count);
void sum_squares(double* out, const float* a, std::int64_t count);
void clip_factor(double* norm, float* factor, const double* squares, std::int64_t count, double max_norm);
void scale_by(float* data, const float* factor, std::int64_t count);

// layer_norm.cc
void layer_norm(float* out, double* mean, float* rstd, const float* x, const float* gain, const float* bias,
                const LayerNormShape& shape);
void layer_norm_backward(Into dx, Into dgain, Into dbias, const float* dy, const float* x, const double* mean,
                         const float* rstd, const float* gain, const LayerNormShape& shape);

// embedding.cc
// The first position whose index is not in [0, limit) and not `ignore`, or -1.
std::int64_t first_bad_index(const std::int64_t* indices, std::int64_t count, std::int64_t limit, std::int64_t ignore);
void embedding(float* out, const float* table, const std::int64_t* indices, std::int64_t count, std::int64_t columns);
void embedding_backward(Into dtable, const float* dy, const std::int64_t* indices, std::int64_t count,
                        std::int64_t table_rows, std::int64_t columns);

// attention.cc
void attention(float* out, float* weights, const float* qkv, const AttentionShape& shape);
void attention_backward(Into dqkv, const float* dout, const float* weights, const float* qkv,
                        const AttentionShape& shape);

// dropout.cc
void dropout(float* out, std::uint8_t* mask, const float* x, const RandomKey& key, const std::int64_t* ids,
             std::int64_t samples, std::int64_t elements, float keep);
void dropout_backward(Into dx, const float* dy, const std::uint8_t* mask, float keep, std::int64_t count);

// loss.cc
void cross_entropy(float* loss, std::int64_t* counted, float* largest, float* sums, const float* logits,
                   const std::int64_t* targets, std::int64_t rows, std::int64_t columns, std::int64_t ignore);
void cross_entropy_backward(Into dlogits, const float* dloss, const std::int64_t* counted, const float* largest,
                            const float* sums, const float* logits, const std::int64_t* targets, std::int64_t rows,
                            std::int64_t columns, std::int64_t ignore);
void mse(float* loss, const float* a, const float* b, std::int64_t count);
void mse_backward(Into da, const float* dloss, const float* a, const float* b, float sign, std::int64_t count);

// optimizer.cc
void adamw(float* weights, const float* gradients, float* moment1, float* moment2, std::int64_t count,
           const AdamWStep& step);
void sgd(float* weights, const float* gradients, float* velocity, std::int64_t count, const SgdStep& step);

}  // namespace lockstep::cpu
