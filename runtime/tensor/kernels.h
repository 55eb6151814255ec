// SPDX-License-Identifier: Apache-2.0
// The operations that a device implements.
//
// tensor/cpu has the CPU's, a device's plug-in its own; autograd and the optimizers call nothing else, so they have no
// code per device. Pointers are memory of that device, contiguous and row-major; counts may be 0. Arguments were
// checked by the caller. Memory, and copies to and from it, are DeviceRuntime's.
//
// Order: all of it runs in one stream of the device, stream(), and no call waits for the device. On the CPU everything
// is done when a call returns.
// Failure: what only a kernel can see (an index out of range, a norm that is not a number) is a finding. The CPU throws
// it at once; a device keeps it, and a caller that has waited for the stream asks for it and throws the same
// (findings.h). Threads: any; on a device one at a time. Each call of the CPU's uses the intra-op threads of its caller
// (base/intra_op_threads.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/base/api.h"
#include "lockstep/base/random.h"
#include "lockstep/device/device.h"
#include "lockstep/device/stream.h"

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

// Whose indices they are, for messages.
enum class IndexedBy : std::uint8_t { embedding, cross_entropy };

// A kernel's finding about its data (findings.h throws it): a bad index, or a norm of gradients that is not finite.
struct Finding {
  enum class Kind : std::uint8_t { bad_index, bad_norm };
  Kind kind = Kind::bad_index;
  IndexedBy what = IndexedBy::embedding;
  std::int64_t position = 0;  // of the index; of the first of the parameters whose squares are not finite
  std::int64_t value = 0;     // the index, allowed in [0, limit), or `ignore`
  std::int64_t limit = 0;
  std::int64_t ignore = 0;
  double norm = 0;
};

class Kernels {
 public:
  virtual ~Kernels() = default;

  virtual StreamView stream() const = 0;
  // One in which tensors come from the host (Tensor::to) while that one computes.
  virtual StreamView copy_stream() const = 0;
  // The first finding since the last call, once the host has waited for what found it.
  virtual std::optional<Finding> take_finding() = 0;

  virtual void fill(float* out, float value, std::int64_t count) = 0;

  // --- matrices ---
  virtual void gemm(const Gemm& gemm) = 0;
  // out[j][i] = a[i][j].
  virtual void transpose(Into out, const float* a, std::int64_t rows, std::int64_t columns) = 0;

  // --- element by element; out may be an input unless it says otherwise ---
  virtual void add(Into out, const float* a, const float* b, std::int64_t count) = 0;
  virtual void multiply(Into out, const float* a, const float* b, std::int64_t count) = 0;
  // alpha * a.
  virtual void scale(Into out, const float* a, float alpha, std::int64_t count) = 0;
  virtual void relu(float* out, const float* x, std::int64_t count) = 0;
  virtual void relu_backward(Into dx, const float* y, const float* dy, std::int64_t count) = 0;
  virtual void tanh(float* out, const float* x, std::int64_t count) = 0;
  virtual void tanh_backward(Into dx, const float* y, const float* dy, std::int64_t count) = 0;
  // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): Hendrycks & Gimpel, arXiv:1606.08415.
  virtual void gelu(float* out, const float* x, std::int64_t count) = 0;
  virtual void gelu_backward(Into dx, const float* x, const float* dy, std::int64_t count) = 0;

  // --- rows and sums ---
  // out[r][c] = a[r][c] + row[c]. out may be a.
  virtual void add_row(float* out, const float* a, const float* row, std::int64_t rows, std::int64_t columns) = 0;
  // out[c] = sum over r of a[r][c].
  virtual void sum_rows(Into out, const float* a, std::int64_t rows, std::int64_t columns) = 0;
  // *out = alpha * sum of a.
  virtual void sum(Into out, const float* a, float alpha, std::int64_t count) = 0;
  // out[i] = alpha * *scalar.
  virtual void expand(Into out, const float* scalar, float alpha, std::int64_t count) = 0;
  // *out = the sum of squares: on the CPU exact and rounded to double once (exact_squares.h), on a device in double and
  // in an order that depends on count only.
  virtual void sum_squares(double* out, const float* a, std::int64_t count) = 0;
  // *norm = sqrt(squares[0] + squares[1] + ...), *factor = max_norm / *norm if that is above max_norm, else 1. If the
  // norm is not finite, *factor is 0, and a finding names the first of squares that is not; with an infinite max_norm
  // nobody clips, and there is none.
  virtual void clip_factor(double* norm, float* factor, const double* squares, std::int64_t count, double max_norm) = 0;
  // data[i] *= *factor; nothing if that is 1.
  virtual void scale_by(float* data, const float* factor, std::int64_t count) = 0;

  // --- layers ---
  // Keeps each row's mean and reciprocal standard deviation for the way back.
  virtual void layer_norm(float* out, double* mean, float* rstd, const float* x, const float* gain, const float* bias,
                          const LayerNormShape& shape) = 0;
  // A gradient whose data is null is not computed.
  virtual void layer_norm_backward(Into dx, Into dgain, Into dbias, const float* dy, const float* x, const double* mean,
                                   const float* rstd, const float* gain, const LayerNormShape& shape) = 0;
  // A finding for the first index that is neither in [0, limit) nor `ignore`. The operations on a device that take
  // indices leave out what is not in range.
  virtual void check_indices(IndexedBy what, const std::int64_t* indices, std::int64_t count, std::int64_t limit,
                             std::int64_t ignore) = 0;
  // out[i] = table[indices[i]]; a device leaves out[i] at 0 where that is not in range.
  virtual void embedding(float* out, const float* table, const std::int64_t* indices, std::int64_t count,
                         std::int64_t table_rows, std::int64_t columns) = 0;
  virtual void embedding_backward(Into dtable, const float* dy, const std::int64_t* indices, std::int64_t count,
                                  std::int64_t table_rows, std::int64_t columns) = 0;
  // out: [batch * time, heads * head_size]. weights: [batch, heads, time, time], the softmax, kept for the way back;
  // zero above the diagonal.
  virtual void attention(float* out, float* weights, const float* qkv, const AttentionShape& shape) = 0;
  virtual void attention_backward(Into dqkv, const float* dout, const float* weights, const float* qkv,
                                  const AttentionShape& shape) = 0;
  // Keeps an element with probability `keep` and divides it by that. `samples` samples of `elements` each; element e of
  // the sample with global id ids[s] is kept or not by (key, ids[s], e) alone. mask: 1 where kept.
  virtual void dropout(float* out, std::uint8_t* mask, const float* x, const RandomKey& key, const std::int64_t* ids,
                       std::int64_t samples, std::int64_t elements, float keep) = 0;
  virtual void dropout_backward(Into dx, const float* dy, const std::uint8_t* mask, float keep, std::int64_t count) = 0;

  // --- losses ---
  // *loss = mean over the rows whose target is not `ignore` of -log softmax(logits[row])[target], 0 if there are none,
  // and *counted how many there are. Keeps each row's largest logit, and sums[row] = sum exp(logits[row] -
  // largest[row]), for the way back.
  virtual void cross_entropy(float* loss, std::int64_t* counted, float* largest, float* sums, const float* logits,
                             const std::int64_t* targets, std::int64_t rows, std::int64_t columns,
                             std::int64_t ignore) = 0;
  // d(logits) for d(loss) = *dloss.
  virtual void cross_entropy_backward(Into dlogits, const float* dloss, const std::int64_t* counted,
                                      const float* largest, const float* sums, const float* logits,
                                      const std::int64_t* targets, std::int64_t rows, std::int64_t columns,
                                      std::int64_t ignore) = 0;
  // *loss = mean of (a - b)^2, 0 over none.
  virtual void mse(float* loss, const float* a, const float* b, std::int64_t count) = 0;
  // sign * 2 (a - b) / count * *dloss.
  virtual void mse_backward(Into da, const float* dloss, const float* a, const float* b, float sign,
                            std::int64_t count) = 0;

  // --- optimizers, over flat spans; the same bits on every processor, because replicas take each step apart ---
  virtual void adamw(float* weights, const float* gradients, float* moment1, float* moment2, std::int64_t count,
                     const AdamWStep& step) = 0;
  virtual void sgd(float* weights, const float* gradients, float* velocity, std::int64_t count,
                   const SgdStep& step) = 0;
};

// The CPU's, and its memory: defined by the room tensor/cpu.
Kernels& cpu_kernels();
namespace cpu {
// 64-byte aligned; `bytes` is at least 1. Throws std::bad_alloc.
void* allocate(std::size_t bytes);
void release(void* data, std::size_t bytes) noexcept;
}  // namespace cpu

// Those of a device. BackendUnavailable if their plug-in can't be loaded, or sees no such device.
Kernels& kernels(DeviceId device);

// The function of the plug-in that brings a device's kernels: it returns the same object of a device on each call.
inline constexpr const char* kPluginKernelsSymbol = "lockstep_plugin_kernels";

}  // namespace lockstep

extern "C" LOCKSTEP_API lockstep::Kernels* lockstep_plugin_kernels(int device);
