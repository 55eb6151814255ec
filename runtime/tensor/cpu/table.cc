// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/cpu/cpu_kernels.h"
#include "runtime/tensor/findings.h"

namespace lockstep {
namespace {

class CpuKernels final : public Kernels {
 public:
  StreamView stream() const override { return {}; }
  StreamView copy_stream() const override { return {}; }
  std::optional<Finding> take_finding() override { return std::nullopt; }

  void fill(float* out, float value, std::int64_t count) override { cpu::fill(out, value, count); }
  void gemm(const Gemm& gemm) override { cpu::gemm(gemm); }
  void transpose(Into out, const float* a, std::int64_t rows, std::int64_t columns) override {
    cpu::transpose(out, a, rows, columns);
  }
  void add(Into out, const float* a, const float* b, std::int64_t count) override { cpu::add(out, a, b, count); }
  void multiply(Into out, const float* a, const float* b, std::int64_t count) override {
    cpu::multiply(out, a, b, count);
  }
  void scale(Into out, const float* a, float alpha, std::int64_t count) override { cpu::scale(out, a, alpha, count); }
  void relu(float* out, const float* x, std::int64_t count) override { cpu::relu(out, x, count); }
  void relu_backward(Into dx, const float* y, const float* dy, std::int64_t count) override {
    cpu::relu_backward(dx, y, dy, count);
  }
  void tanh(float* out, const float* x, std::int64_t count) override { cpu::tanh(out, x, count); }
  void tanh_backward(Into dx, const float* y, const float* dy, std::int64_t count) override {
    cpu::tanh_backward(dx, y, dy, count);
  }
  void gelu(float* out, const float* x, std::int64_t count) override { cpu::gelu(out, x, count); }
  void gelu_backward(Into dx, const float* x, const float* dy, std::int64_t count) override {
    cpu::gelu_backward(dx, x, dy, count);
  }
  void add_row(float* out, const float* a, const float* row, std::int64_t rows, std::int64_t columns) override {
    cpu::add_row(out, a, row, rows, columns);
  }
  void sum_rows(Into out, const float* a, std::int64_t rows, std::int64_t columns) override {
    cpu::sum_rows(out, a, rows, columns);
  }
  void sum(Into out, const float* a, float alpha, std::int64_t count) override { cpu::sum(out, a, alpha, count); }
  void expand(Into out, const float* scalar, float alpha, std::int64_t count) override {
    cpu::expand(out, scalar, alpha, count);
  }
  void sum_squares(double* out, const float* a, std::int64_t count) override { cpu::sum_squares(out, a, count); }
  void clip_factor(double* norm, float* factor, const double* squares, std::int64_t count, double max_norm) override {
    cpu::clip_factor(norm, factor, squares, count, max_norm);
  }
  void scale_by(float* data, const float* factor, std::int64_t count) override { cpu::scale_by(data, factor, count); }
  void layer_norm(float* out, double* mean, float* rstd, const float* x, const float* gain, const float* bias,
                  const LayerNormShape& shape) override {
    cpu::layer_norm(out, mean, rstd, x, gain, bias, shape);
  }
  void layer_norm_backward(Into dx, Into dgain, Into dbias, const float* dy, const float* x, const double* mean,
                           const float* rstd, const float* gain, const LayerNormShape& shape) override {
    cpu::layer_norm_backward(dx, dgain, dbias, dy, x, mean, rstd, gain, shape);
  }
  void embedding(float* out, const float* table, const std::int64_t* indices, std::int64_t count,
                 std::int64_t /*table_rows*/, std::int64_t columns) override {
    cpu::embedding(out, table, indices, count, columns);
  }
  void embedding_backward(Into dtable, const float* dy, const std::int64_t* indices, std::int64_t count,
                          std::int64_t table_rows, std::int64_t columns) override {
    cpu::embedding_backward(dtable, dy, indices, count, table_rows, columns);
  }
  void attention(float* out, float* weights, const float* qkv, const AttentionShape& shape) override {
    cpu::attention(out, weights, qkv, shape);
  }
  void attention_backward(Into dqkv, const float* dout, const float* weights, const float* qkv,
                          const AttentionShape& shape) override {
    cpu::attention_backward(dqkv, dout, weights, qkv, shape);
  }
  void dropout(float* out, std::uint8_t* mask, const float* x, const RandomKey& key, const std::int64_t* ids,
               std::int64_t samples, std::int64_t elements, float keep) override {
    cpu::dropout(out, mask, x, key, ids, samples, elements, keep);
  }
  void dropout_backward(Into dx, const float* dy, const std::uint8_t* mask, float keep, std::int64_t count) override {
    cpu::dropout_backward(dx, dy, mask, keep, count);
  }
  void cross_entropy(float* loss, std::int64_t* counted, float* largest, float* sums, const float* logits,
                     const std::int64_t* targets, std::int64_t rows, std::int64_t columns,
                     std::int64_t ignore) override {
    cpu::cross_entropy(loss, counted, largest, sums, logits, targets, rows, columns, ignore);
  }
  void cross_entropy_backward(Into dlogits, const float* dloss, const std::int64_t* counted, const float* largest,
                              const float* sums, const float* logits, const std::int64_t* targets, std::int64_t rows,
                              std::int64_t columns, std::int64_t ignore) override {
    cpu::cross_entropy_backward(dlogits, dloss, counted, largest, sums, logits, targets, rows, columns, ignore);
  }
  void mse(float* loss, const float* a, const float* b, std::int64_t count) override { cpu::mse(loss, a, b, count); }
  void mse_backward(Into da, const float* dloss, const float* a, const float* b, float sign,
                    std::int64_t count) override {
    cpu::mse_backward(da, dloss, a, b, sign, count);
  }
  void adamw(float* weights, const float* gradients, float* moment1, float* moment2, std::int64_t count,
             const AdamWStep& step) override {
    cpu::adamw(weights, gradients, moment1, moment2, count, step);
  }
  void sgd(float* weights, const float* gradients, float* velocity, std::int64_t count, const SgdStep& step) override {
    cpu::sgd(weights, gradients, velocity, count, step);
  }
  void check_indices(IndexedBy what, const std::int64_t* indices, std::int64_t count, std::int64_t limit,
                     std::int64_t ignore) override {
    const std::int64_t bad = cpu::first_bad_index(indices, count, limit, ignore);
    if (bad >= 0)
      throw_finding({.what = what, .position = bad, .value = indices[bad], .limit = limit, .ignore = ignore});
  }
};

}  // namespace

Kernels& cpu_kernels() {
  static CpuKernels kernels;
  return kernels;
}

}  // namespace lockstep
