// SPDX-License-Identifier: Apache-2.0
// The table of operations that a device implements.
//
// tensor/cpu fills one, a device's plug-in another; autograd and the optimizers call nothing else, so they have no code
// per device. Pointers are memory of that device, contiguous and row-major; counts may be 0. Arguments were checked by
// the caller. Threads: any; each call uses the intra-op threads of its caller (base/intra_op_threads.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/base/random.h"
#include "lockstep/device/device.h"

namespace lockstep {

// Where a result goes: written there, or added to what is there. Gradients of many uses meet this way, and a
// parameter's gradient goes straight into its arena.
struct Into {
  float* data = nullptr;
  bool add = false;
};

// A row-major matrix, to be read as it is stored or transposed. `stride` is the distance between two of its rows as
// stored (BLAS: leading dimension), so parts of a wider matrix work too.
struct MatrixView {
  const float* data = nullptr;
  std::int64_t stride = 0;
  bool transposed = false;
};

// C = alpha * A * B, C being rows x columns and the inner extent being `inner`; `ldc` is the stride of C.
struct Gemm {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t inner = 0;
  float alpha = 1.0f;
  MatrixView a = {};
  MatrixView b = {};
  Into c = {};
  std::int64_t ldc = 0;
};

// Causal self-attention over packed projections. Row (b, t) of qkv holds query, key and value side by side, each of
// heads * head_size channels, heads one after the other.
struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t time = 0;
  std::int64_t heads = 0;
  std::int64_t head_size = 0;
};

struct LayerNormShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  float epsilon = 1e-5f;
};

// One step of AdamW over a flat span, as set in double: a device rounds what it computes from them, once. Corrections
// are 1 - beta^step.
struct AdamWStep {
  double learning_rate = 0;
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double weight_decay = 0;
  double correction1 = 1;
  double correction2 = 1;
};

struct SgdStep {
  double learning_rate = 0;
  double momentum = 0;  // 0: the velocity is not touched and may be null
  double weight_decay = 0;
  bool nesterov = false;
};

struct KernelTable {
  // --- memory ---
  // `bytes` is at least 1. 64-byte aligned. Throws std::bad_alloc.
  void* (*allocate)(std::size_t bytes);
  void (*release)(void* data, std::size_t bytes) noexcept;
  // Between any two of this device and the host.
  void (*copy)(void* target, DeviceId to, const void* source, DeviceId from, std::size_t bytes);
  void (*zero)(void* data, std::size_t bytes);
  void (*fill)(float* out, float value, std::int64_t count);

  // --- matrices ---
  void (*gemm)(const Gemm& gemm);
  // out[j][i] = a[i][j].
  void (*transpose)(Into out, const float* a, std::int64_t rows, std::int64_t columns);

  // --- element by element; out may be an input unless it says otherwise ---
  void (*add)(Into out, const float* a, const float* b, std::int64_t count);
  void (*multiply)(Into out, const float* a, const float* b, std::int64_t count);
  // alpha * a.
  void (*scale)(Into out, const float* a, float alpha, std::int64_t count);
  void (*relu)(float* out, const float* x, std::int64_t count);
  void (*relu_backward)(Into dx, const float* y, const float* dy, std::int64_t count);
  void (*tanh)(float* out, const float* x, std::int64_t count);
  void (*tanh_backward)(Into dx, const float* y, const float* dy, std::int64_t count);
  // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): Hendrycks & Gimpel, arXiv:1606.08415.
  void (*gelu)(float* out, const float* x, std::int64_t count);
  void (*gelu_backward)(Into dx, const float* x, const float* dy, std::int64_t count);

  // --- rows and sums ---
  // out[r][c] = a[r][c] + row[c]. out may be a.
  void (*add_row)(float* out, const float* a, const float* row, std::int64_t rows, std::int64_t columns);
  // out[c] = sum over r of a[r][c].
  void (*sum_rows)(Into out, const float* a, std::int64_t rows, std::int64_t columns);
  // *out = alpha * sum of a.
  void (*sum)(Into out, const float* a, float alpha, std::int64_t count);
  // out[i] = alpha * *scalar.
  void (*expand)(Into out, const float* scalar, float alpha, std::int64_t count);
  // The sum of squares, in double and in an order that depends on count only, whatever the processor. Waits for the
  // device.
  double (*sum_squares)(const float* a, std::int64_t count);

  // --- layers ---
  // Keeps each row's mean and reciprocal standard deviation for the way back.
  void (*layer_norm)(float* out, double* mean, float* rstd, const float* x, const float* gain, const float* bias,
                     const LayerNormShape& shape);
  // A gradient whose data is null is not computed.
  void (*layer_norm_backward)(Into dx, Into dgain, Into dbias, const float* dy, const float* x, const double* mean,
                              const float* rstd, const float* gain, const LayerNormShape& shape);
  // The first position whose index is not in [0, limit) and not `ignore`, or -1. Waits for the device.
  std::int64_t (*first_bad_index)(const std::int64_t* indices, std::int64_t count, std::int64_t limit,
                                  std::int64_t ignore);
  // out[i] = table[indices[i]].
  void (*embedding)(float* out, const float* table, const std::int64_t* indices, std::int64_t count,
                    std::int64_t columns);
  void (*embedding_backward)(Into dtable, const float* dy, const std::int64_t* indices, std::int64_t count,
                             std::int64_t table_rows, std::int64_t columns);
  // out: [batch * time, heads * head_size]. weights: [batch, heads, time, time], the softmax, kept for the way back;
  // zero above the diagonal.
  void (*attention)(float* out, float* weights, const float* qkv, const AttentionShape& shape);
  void (*attention_backward)(Into dqkv, const float* dout, const float* weights, const float* qkv,
                             const AttentionShape& shape);
  // Keeps an element with probability `keep` and divides it by that. `samples` samples of `elements` each; element e of
  // the sample with global id ids[s] (host memory) is kept or not by (key, ids[s], e) alone. mask: 1 where kept.
  void (*dropout)(float* out, std::uint8_t* mask, const float* x, const RandomKey& key, const std::int64_t* ids,
                  std::int64_t samples, std::int64_t elements, float keep);
  void (*dropout_backward)(Into dx, const float* dy, const std::uint8_t* mask, float keep, std::int64_t count);

  // --- losses ---
  // *loss = mean over the rows whose target is not `ignore` of -log softmax(logits[row])[target], 0 if there are none.
  // Keeps each row's largest logit, and sums[row] = sum exp(logits[row] - largest[row]), for the way back. Returns the
  // rows that counted. Waits.
  std::int64_t (*cross_entropy)(float* loss, float* largest, float* sums, const float* logits,
                                const std::int64_t* targets, std::int64_t rows, std::int64_t columns,
                                std::int64_t ignore);
  // d(logits) for d(loss) = *dloss; `counted` is what the forward returned.
  void (*cross_entropy_backward)(Into dlogits, const float* dloss, const float* largest, const float* sums,
                                 const float* logits, const std::int64_t* targets, std::int64_t rows,
                                 std::int64_t columns, std::int64_t ignore, std::int64_t counted);
  // *loss = mean of (a - b)^2, 0 over none.
  void (*mse)(float* loss, const float* a, const float* b, std::int64_t count);
  // sign * 2 (a - b) / count * *dloss.
  void (*mse_backward)(Into da, const float* dloss, const float* a, const float* b, float sign, std::int64_t count);

  // --- optimizers, over flat spans; the same bits on every processor, because replicas take each step apart ---
  void (*adamw)(float* weights, const float* gradients, float* moment1, float* moment2, std::int64_t count,
                const AdamWStep& step);
  void (*sgd)(float* weights, const float* gradients, float* velocity, std::int64_t count, const SgdStep& step);
};

// The CPU's: defined by the room tensor/cpu.
const KernelTable& cpu_kernels();

// The table of a device. BackendUnavailable if nobody registered one for its kind.
const KernelTable& kernels(DeviceId device);

// For plug-ins, while they are loaded; the table lives as long as the process. Any thread.
void register_kernels(DeviceKind kind, const KernelTable* table);

}  // namespace lockstep
