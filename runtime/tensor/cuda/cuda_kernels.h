// SPDX-License-Identifier: Apache-2.0
// The operations of tensor/kernels.h on a GPU: each file beside this one has a kind of them, and matmul.h the matrix
// products.
//
// The same call on the same memory gives the same bits in every run on one kind of device: sums have an order that
// depends on extents alone, and no kernel has an atomic operation. Operations that give the CPU's bits say so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/device/device_runtime.h"
#include "lockstep/device/stream.h"
#include "runtime/tensor/cuda/finding.h"
#include "runtime/tensor/cuda/matmul.h"
#include "runtime/tensor/kernels.h"

namespace lockstep::cuda {

class Launch;
// launch.cuh has it, which is for nvcc.
struct DeleteLaunch {
  void operator()(Launch* launch) const;
};
using LaunchPointer = std::unique_ptr<Launch, DeleteLaunch>;
LaunchPointer make_launch(StreamView stream);

class CudaKernels final : public Kernels {
 public:
  // Makes the stream and loads the kernels. Throws as DeviceRuntime::create_stream does, and as Launcher.
  explicit CudaKernels(DeviceId device);
  ~CudaKernels() override;
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  StreamView stream() const override { return stream_.view(); }
  StreamView copy_stream() const override { return copy_stream_.view(); }
  std::optional<Finding> take_finding() override;

  void fill(float* out, float value, std::int64_t count) override;
  void gemm(const Gemm& gemm) override;
  void transpose(Into out, const float* a, std::int64_t rows, std::int64_t columns) override;
  void add(Into out, const float* a, const float* b, std::int64_t count) override;
  void multiply(Into out, const float* a, const float* b, std::int64_t count) override;
  void scale(Into out, const float* a, float alpha, std::int64_t count) override;
  void relu(float* out, const float* x, std::int64_t count) override;
  void relu_backward(Into dx, const float* y, const float* dy, std::int64_t count) override;
  void tanh(float* out, const float* x, std::int64_t count) override;
  void tanh_backward(Into dx, const float* y, const float* dy, std::int64_t count) override;
  void gelu(float* out, const float* x, std::int64_t count) override;
  void gelu_backward(Into dx, const float* x, const float* dy, std::int64_t count) override;
  void add_row(float* out, const float* a, const float* row, std::int64_t rows, std::int64_t columns) override;
  void sum_rows(Into out, const float* a, std::int64_t rows, std::int64_t columns) override;
  void sum(Into out, const float* a, float alpha, std::int64_t count) override;
  void expand(Into out, const float* scalar, float alpha, std::int64_t count) override;
  void sum_squares(double* out, const float* a, std::int64_t count) override;
  void clip_factor(double* norm, float* factor, const double* squares, std::int64_t count, double max_norm) override;
  void scale_by(float* data, const float* factor, std::int64_t count) override;
  void layer_norm(float* out, double* mean, float* rstd, const float* x, const float* gain, const float* bias,
                  const LayerNormShape& shape) override;
  void layer_norm_backward(Into dx, Into dgain, Into dbias, const float* dy, const float* x, const double* mean,
                           const float* rstd, const float* gain, const LayerNormShape& shape) override;
  void check_indices(IndexedBy what, const std::int64_t* indices, std::int64_t count, std::int64_t limit,
                     std::int64_t ignore) override;
  void embedding(float* out, const float* table, const std::int64_t* indices, std::int64_t count,
                 std::int64_t table_rows, std::int64_t columns) override;
  void embedding_backward(Into dtable, const float* dy, const std::int64_t* indices, std::int64_t count,
                          std::int64_t table_rows, std::int64_t columns) override;
  void attention(float* out, float* weights, const float* qkv, const AttentionShape& shape) override;
  void attention_backward(Into dqkv, const float* dout, const float* weights, const float* qkv,
                          const AttentionShape& shape) override;
  void dropout(float* out, std::uint8_t* mask, const float* x, const RandomKey& key, const std::int64_t* ids,
               std::int64_t samples, std::int64_t elements, float keep) override;
  void dropout_backward(Into dx, const float* dy, const std::uint8_t* mask, float keep, std::int64_t count) override;
  void cross_entropy(float* loss, std::int64_t* counted, float* largest, float* sums, const float* logits,
                     const std::int64_t* targets, std::int64_t rows, std::int64_t columns,
                     std::int64_t ignore) override;
  void cross_entropy_backward(Into dlogits, const float* dloss, const std::int64_t* counted, const float* largest,
                              const float* sums, const float* logits, const std::int64_t* targets, std::int64_t rows,
                              std::int64_t columns, std::int64_t ignore) override;
  void mse(float* loss, const float* a, const float* b, std::int64_t count) override;
  void mse_backward(Into da, const float* dloss, const float* a, const float* b, float sign,
                    std::int64_t count) override;
  void adamw(float* weights, const float* gradients, float* moment1, float* moment2, std::int64_t count,
             const AdamWStep& step) override;
  void sgd(float* weights, const float* gradients, float* velocity, std::int64_t count, const SgdStep& step) override;

 private:
  // Memory for what a call keeps between its launches, of the stream's order: the next call's kernels write there
  // behind it.
  template <typename T>
  T* scratch(std::int64_t count) {
    return static_cast<T*>(scratch_bytes(static_cast<std::size_t>(count) * sizeof(T)));
  }
  void* scratch_bytes(std::size_t bytes);
  // Matrices of a batch, each `stride` elements behind the last.
  void batched_gemm(const Gemm& gemm, const Batch& batch);
  void choose_products();
  // product.cu. No extent is 0.
  void multiply_by_tiles(const Gemm& gemm, const Batch& batch);

  DeviceRuntime& runtime_;
  Stream stream_;
  Stream copy_stream_;
  LaunchPointer launch_;
  std::shared_ptr<FindingRecord> finding_;  // pinned; kernels write there
  std::shared_ptr<void> scratch_;
  std::size_t scratch_bytes_ = 0;
  std::unique_ptr<Matmul> matmul_;  // with the first product, if there is a cuBLASLt
  bool multiplies_by_tiles_ = false;
};

}  // namespace lockstep::cuda
