// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/checked_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"

namespace lockstep {
namespace {

constexpr double kSameBits = 0;
// Of functions and sums of floats, in another order or by another formula.
constexpr double kClose = 1e-4;
constexpr std::chrono::minutes kPatience{10};

// The arrays of one call, as the host has them.
class Call {
 public:
  Call(Kernels& device, std::string what) : device_(device), what_(std::move(what)) {}

  // A copy of what the device has there; null of null.
  template <typename T>
  const T* in(const T* data, std::int64_t count) {
    return copy(data, count, nullptr, kSameBits);
  }
  // The same, of what the call writes.
  template <typename T>
  T* out(T* data, std::int64_t count, double tolerance) {
    return copy(data, count, describe<T>, tolerance);
  }
  Into into(Into out_data, std::int64_t count, double tolerance) {
    return {out(out_data.data, count, tolerance), out_data.add};
  }

  // Once both have computed.
  void compare() {
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      const Array& array = arrays_[i];
      if (array.describe == nullptr) continue;
      std::vector<std::byte> got(array.host.size());
      fetch(got.data(), array.on_device, got.size());
      const std::string difference = array.describe(got, array.host, array.tolerance);
      if (difference.empty()) continue;
      throw Error(
          fmt::format("LOCKSTEP_KERNEL_CHECK: {} on {} differs from the CPU's in array {} of its arguments, {}; report "
                      "it with this line and the output of 'lockstep doctor'",
                      what_, device_.stream().device.str(), i + 1, difference));
    }
  }

 private:
  using Describe = std::string (*)(const std::vector<std::byte>&, const std::vector<std::byte>&, double);
  struct Array {
    const void* on_device = nullptr;
    std::vector<std::byte> host;
    Describe describe = nullptr;  // null where the call only reads
    double tolerance = 0;
  };

  template <typename T>
  static std::string describe(const std::vector<std::byte>& got, const std::vector<std::byte>& wanted,
                              double tolerance) {
    const auto value = [](const std::vector<std::byte>& bytes, std::size_t i) {
      T one;
      std::memcpy(&one, bytes.data() + i * sizeof(T), sizeof(T));
      return one;
    };
    const std::size_t count = got.size() / sizeof(T);
    double largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto size = std::abs(static_cast<double>(value(wanted, i)));
      if (std::isfinite(size)) largest = std::max(largest, size);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const T a = value(got, i), b = value(wanted, i);
      const auto x = static_cast<double>(a), y = static_cast<double>(b);
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      if (std::abs(x - y) <= tolerance * largest) continue;
      return fmt::format("element {} of {}: {} instead of {}", i, count, a, b);
    }
    return {};
  }

  void fetch(void* to, const void* from, std::size_t bytes) {
    DeviceRuntime& runtime = device_runtime(device_.stream().device.kind);
    runtime.copy(to, from, bytes, device_.stream());
    runtime.synchronize(device_.stream(), Deadline::after(kPatience));
  }

  template <typename T>
  T* copy(T* data, std::int64_t count, Describe how, double tolerance) {
    Array array{.on_device = data, .host = {}, .describe = how, .tolerance = tolerance};
    if (data != nullptr && count > 0) {
      array.host.resize(static_cast<std::size_t>(count) * sizeof(T));
      fetch(array.host.data(), data, array.host.size());
    }
    arrays_.push_back(std::move(array));
    return data == nullptr ? nullptr : reinterpret_cast<T*>(const_cast<std::byte*>(arrays_.back().host.data()));
  }

  Kernels& device_;
  std::string what_;
  std::vector<Array> arrays_;
};

// Elements from the first to the last of a matrix as stored.
std::int64_t extent(std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  return rows == 0 || columns == 0 ? 0 : (rows - 1) * stride + columns;
}

class CheckedKernels final : public Kernels {
 public:
  CheckedKernels(Kernels& device, Kernels& cpu, double products) : device_(device), cpu_(cpu), products_(products) {}

  StreamView stream() const override { return device_.stream(); }
  StreamView copy_stream() const override { return device_.copy_stream(); }
  std::optional<Finding> take_finding() override { return device_.take_finding(); }

  void fill(float* out, float value, std::int64_t n) override {
    Call call(device_, fmt::format("fill of {}", n));
    cpu_.fill(call.out(out, n, kSameBits), value, n);
    device_.fill(out, value, n);
    call.compare();
  }
  void gemm(const Gemm& gemm) override {
    Call call(device_, fmt::format("gemm of {}{} x {} by {}{} x {}", gemm.a.transposed ? "transposed " : "", gemm.rows,
                                   gemm.inner, gemm.b.transposed ? "transposed " : "", gemm.inner, gemm.columns));
    Gemm host = gemm;
    const auto stored = [&](const MatrixView& m, std::int64_t rows, std::int64_t columns) {
      return m.transposed ? extent(columns, rows, m.stride) : extent(rows, columns, m.stride);
    };
    host.a.data = call.in(gemm.a.data, stored(gemm.a, gemm.rows, gemm.inner));
    host.b.data = call.in(gemm.b.data, stored(gemm.b, gemm.inner, gemm.columns));
    host.c = call.into(gemm.c, extent(gemm.rows, gemm.columns, gemm.ldc), products_);
    cpu_.gemm(host);
    device_.gemm(gemm);
    call.compare();
  }
  void transpose(Into out, const float* a, std::int64_t rows, std::int64_t columns) override {
    const std::int64_t n = rows * columns;
    Call call(device_, fmt::format("transpose of {} x {}", rows, columns));
    const float* const host_a = call.in(a, n);
    cpu_.transpose(call.into(out, n, kSameBits), host_a, rows, columns);
    device_.transpose(out, a, rows, columns);
    call.compare();
  }

  void add(Into out, const float* a, const float* b, std::int64_t n) override {
    two("add", out, a, b, n, kSameBits, [](Kernels& k, auto... with) { k.add(with...); });
  }
  void multiply(Into out, const float* a, const float* b, std::int64_t n) override {
    two("multiply", out, a, b, n, kClose, [](Kernels& k, auto... with) { k.multiply(with...); });
  }
  void scale(Into out, const float* a, float alpha, std::int64_t n) override {
    Call call(device_, fmt::format("scale of {}", n));
    const float* const host_a = call.in(a, n);
    cpu_.scale(call.into(out, n, kClose), host_a, alpha, n);
    device_.scale(out, a, alpha, n);
    call.compare();
  }
  void relu(float* out, const float* x, std::int64_t n) override {
    one("relu", out, x, n, kSameBits, [](Kernels& k, auto... with) { k.relu(with...); });
  }
  void relu_backward(Into dx, const float* y, const float* dy, std::int64_t n) override {
    two("relu_backward", dx, y, dy, n, kSameBits, [](Kernels& k, auto... with) { k.relu_backward(with...); });
  }
  void tanh(float* out, const float* x, std::int64_t n) override {
    one("tanh", out, x, n, kClose, [](Kernels& k, auto... with) { k.tanh(with...); });
  }
  void tanh_backward(Into dx, const float* y, const float* dy, std::int64_t n) override {
    two("tanh_backward", dx, y, dy, n, kClose, [](Kernels& k, auto... with) { k.tanh_backward(with...); });
  }
  void gelu(float* out, const float* x, std::int64_t n) override {
    one("gelu", out, x, n, kClose, [](Kernels& k, auto... with) { k.gelu(with...); });
  }
  void gelu_backward(Into dx, const float* x, const float* dy, std::int64_t n) override {
    two("gelu_backward", dx, x, dy, n, kClose, [](Kernels& k, auto... with) { k.gelu_backward(with...); });
  }

  void add_row(float* out, const float* a, const float* row, std::int64_t rows, std::int64_t columns) override {
    const std::int64_t n = rows * columns;
    Call call(device_, fmt::format("add_row of {} x {}", rows, columns));
    const float *const host_a = call.in(a, n), *const host_row = call.in(row, columns);
    cpu_.add_row(call.out(out, n, kSameBits), host_a, host_row, rows, columns);
    device_.add_row(out, a, row, rows, columns);
    call.compare();
  }
  void sum_rows(Into out, const float* a, std::int64_t rows, std::int64_t columns) override {
    Call call(device_, fmt::format("sum_rows of {} x {}", rows, columns));
    const float* const host_a = call.in(a, rows * columns);
    cpu_.sum_rows(call.into(out, columns, kClose), host_a, rows, columns);
    device_.sum_rows(out, a, rows, columns);
    call.compare();
  }
  void sum(Into out, const float* a, float alpha, std::int64_t n) override {
    Call call(device_, fmt::format("sum of {}", n));
    const float* const host_a = call.in(a, n);
    cpu_.sum(call.into(out, 1, kClose), host_a, alpha, n);
    device_.sum(out, a, alpha, n);
    call.compare();
  }
  void expand(Into out, const float* scalar, float alpha, std::int64_t n) override {
    Call call(device_, fmt::format("expand to {}", n));
    const float* const host_scalar = call.in(scalar, 1);
    cpu_.expand(call.into(out, n, kClose), host_scalar, alpha, n);
    device_.expand(out, scalar, alpha, n);
    call.compare();
  }
  void sum_squares(double* out, const float* a, std::int64_t n) override {
    Call call(device_, fmt::format("sum_squares of {}", n));
    const float* const host_a = call.in(a, n);
    cpu_.sum_squares(call.out(out, 1, 1e-10), host_a, n);
    device_.sum_squares(out, a, n);
    call.compare();
  }
  // A norm that is none is the device's to find: the CPU would throw here.
  void clip_factor(double* norm, float* factor, const double* squares, std::int64_t n, double max_norm) override {
    Call call(device_, fmt::format("clip_factor of {}", n));
    const double* const host_squares = call.in(squares, n);
    const bool are_finite =
        std::all_of(host_squares, host_squares + n, [](double square) { return std::isfinite(square); });
    double* const host_norm = call.out(norm, 1, 1e-10);
    float* const host_factor = call.out(factor, 1, kClose);
    if (are_finite) cpu_.clip_factor(host_norm, host_factor, host_squares, n, max_norm);
    device_.clip_factor(norm, factor, squares, n, max_norm);
    if (are_finite) call.compare();
  }
  void scale_by(float* data, const float* factor, std::int64_t n) override {
    Call call(device_, fmt::format("scale_by of {}", n));
    const float* const host_factor = call.in(factor, 1);
    cpu_.scale_by(call.out(data, n, kSameBits), host_factor, n);
    device_.scale_by(data, factor, n);
    call.compare();
  }

  void layer_norm(float* out, double* mean, float* rstd, const float* x, const float* gain, const float* bias,
                  const LayerNormShape& shape) override {
    const std::int64_t rows = shape.rows, columns = shape.columns, n = rows * columns;
    Call call(device_, fmt::format("layer_norm of {} x {}", rows, columns));
    const float *const host_x = call.in(x, n), *const host_gain = call.in(gain, columns),
                       *const host_bias = call.in(bias, columns);
    float* const host_out = call.out(out, n, kClose);
    double* const host_mean = call.out(mean, rows, 1e-8);
    cpu_.layer_norm(host_out, host_mean, call.out(rstd, rows, kClose), host_x, host_gain, host_bias, shape);
    device_.layer_norm(out, mean, rstd, x, gain, bias, shape);
    call.compare();
  }
  void layer_norm_backward(Into dx, Into dgain, Into dbias, const float* dy, const float* x, const double* mean,
                           const float* rstd, const float* gain, const LayerNormShape& shape) override {
    const std::int64_t rows = shape.rows, columns = shape.columns, n = rows * columns;
    Call call(device_, fmt::format("layer_norm_backward of {} x {}", rows, columns));
    const float *const host_dy = call.in(dy, n), *const host_x = call.in(x, n), *const host_rstd = call.in(rstd, rows),
                       *const host_gain = call.in(gain, columns);
    const double* const host_mean = call.in(mean, rows);
    const Into host_dx = call.into(dx, n, kClose), host_dgain = call.into(dgain, columns, kClose);
    cpu_.layer_norm_backward(host_dx, host_dgain, call.into(dbias, columns, kClose), host_dy, host_x, host_mean,
                             host_rstd, host_gain, shape);
    device_.layer_norm_backward(dx, dgain, dbias, dy, x, mean, rstd, gain, shape);
    call.compare();
  }
  // The CPU throws what it finds, so that nothing below gets an index that is out of range.
  void check_indices(IndexedBy what, const std::int64_t* indices, std::int64_t count, std::int64_t limit,
                     std::int64_t ignore) override {
    Call call(device_, "check_indices");
    cpu_.check_indices(what, call.in(indices, count), count, limit, ignore);
    device_.check_indices(what, indices, count, limit, ignore);
  }
  void embedding(float* out, const float* table, const std::int64_t* indices, std::int64_t count,
                 std::int64_t table_rows, std::int64_t columns) override {
    Call call(device_, fmt::format("embedding of {} in {} x {}", count, table_rows, columns));
    const float* const host_table = call.in(table, table_rows * columns);
    const std::int64_t* const host_indices = call.in(indices, count);
    cpu_.embedding(call.out(out, count * columns, kSameBits), host_table, host_indices, count, table_rows, columns);
    device_.embedding(out, table, indices, count, table_rows, columns);
    call.compare();
  }
  void embedding_backward(Into dtable, const float* dy, const std::int64_t* indices, std::int64_t count,
                          std::int64_t table_rows, std::int64_t columns) override {
    Call call(device_, fmt::format("embedding_backward of {} in {} x {}", count, table_rows, columns));
    const float* const host_dy = call.in(dy, count * columns);
    const std::int64_t* const host_indices = call.in(indices, count);
    cpu_.embedding_backward(call.into(dtable, table_rows * columns, kSameBits), host_dy, host_indices, count,
                            table_rows, columns);
    device_.embedding_backward(dtable, dy, indices, count, table_rows, columns);
    call.compare();
  }
  void attention(float* out, float* weights, const float* qkv, const AttentionShape& shape) override {
    const std::int64_t channels = shape.heads * shape.head_size, rows = shape.batch * shape.time;
    Call call(device_, describe("attention", shape));
    const float* const host_qkv = call.in(qkv, rows * 3 * channels);
    float* const host_out = call.out(out, rows * channels, products_);
    cpu_.attention(host_out, call.out(weights, rows * shape.heads * shape.time, products_), host_qkv, shape);
    device_.attention(out, weights, qkv, shape);
    call.compare();
  }
  void attention_backward(Into dqkv, const float* dout, const float* weights, const float* qkv,
                          const AttentionShape& shape) override {
    const std::int64_t channels = shape.heads * shape.head_size, rows = shape.batch * shape.time;
    Call call(device_, describe("attention_backward", shape));
    const float *const host_dout = call.in(dout, rows * channels),
                       *const host_weights = call.in(weights, rows * shape.heads * shape.time),
                       *const host_qkv = call.in(qkv, rows * 3 * channels);
    cpu_.attention_backward(call.into(dqkv, rows * 3 * channels, products_), host_dout, host_weights, host_qkv, shape);
    device_.attention_backward(dqkv, dout, weights, qkv, shape);
    call.compare();
  }
  void dropout(float* out, std::uint8_t* mask, const float* x, const RandomKey& key, const std::int64_t* ids,
               std::int64_t samples, std::int64_t elements, float keep) override {
    const std::int64_t n = samples * elements;
    Call call(device_, fmt::format("dropout of {} x {}", samples, elements));
    const float* const host_x = call.in(x, n);
    const std::int64_t* const host_ids = call.in(ids, samples);
    float* const host_out = call.out(out, n, kSameBits);
    cpu_.dropout(host_out, call.out(mask, n, kSameBits), host_x, key, host_ids, samples, elements, keep);
    device_.dropout(out, mask, x, key, ids, samples, elements, keep);
    call.compare();
  }
  void dropout_backward(Into dx, const float* dy, const std::uint8_t* mask, float keep, std::int64_t n) override {
    Call call(device_, fmt::format("dropout_backward of {}", n));
    const float* const host_dy = call.in(dy, n);
    const std::uint8_t* const host_mask = call.in(mask, n);
    cpu_.dropout_backward(call.into(dx, n, kClose), host_dy, host_mask, keep, n);
    device_.dropout_backward(dx, dy, mask, keep, n);
    call.compare();
  }

  void cross_entropy(float* loss, std::int64_t* counted, float* largest, float* sums, const float* logits,
                     const std::int64_t* targets, std::int64_t rows, std::int64_t columns,
                     std::int64_t ignore) override {
    Call call(device_, fmt::format("cross_entropy of {} x {}", rows, columns));
    const float* const host_logits = call.in(logits, rows * columns);
    const std::int64_t* const host_targets = call.in(targets, rows);
    float* const host_loss = call.out(loss, 1, kClose);
    std::int64_t* const host_counted = call.out(counted, 1, kSameBits);
    float* const host_largest = call.out(largest, rows, kSameBits);
    cpu_.cross_entropy(host_loss, host_counted, host_largest, call.out(sums, rows, kClose), host_logits, host_targets,
                       rows, columns, ignore);
    device_.cross_entropy(loss, counted, largest, sums, logits, targets, rows, columns, ignore);
    call.compare();
  }
  void cross_entropy_backward(Into dlogits, const float* dloss, const std::int64_t* counted, const float* largest,
                              const float* sums, const float* logits, const std::int64_t* targets, std::int64_t rows,
                              std::int64_t columns, std::int64_t ignore) override {
    const std::int64_t n = rows * columns;
    Call call(device_, fmt::format("cross_entropy_backward of {} x {}", rows, columns));
    const float *const host_dloss = call.in(dloss, 1), *const host_largest = call.in(largest, rows),
                       *const host_sums = call.in(sums, rows), *const host_logits = call.in(logits, n);
    const std::int64_t *const host_counted = call.in(counted, 1), *const host_targets = call.in(targets, rows);
    cpu_.cross_entropy_backward(call.into(dlogits, n, kClose), host_dloss, host_counted, host_largest, host_sums,
                                host_logits, host_targets, rows, columns, ignore);
    device_.cross_entropy_backward(dlogits, dloss, counted, largest, sums, logits, targets, rows, columns, ignore);
    call.compare();
  }
  void mse(float* loss, const float* a, const float* b, std::int64_t n) override {
    Call call(device_, fmt::format("mse of {}", n));
    const float *const host_a = call.in(a, n), *const host_b = call.in(b, n);
    cpu_.mse(call.out(loss, 1, kClose), host_a, host_b, n);
    device_.mse(loss, a, b, n);
    call.compare();
  }
  void mse_backward(Into da, const float* dloss, const float* a, const float* b, float sign, std::int64_t n) override {
    Call call(device_, fmt::format("mse_backward of {}", n));
    const float *const host_dloss = call.in(dloss, 1), *const host_a = call.in(a, n), *const host_b = call.in(b, n);
    cpu_.mse_backward(call.into(da, n, kClose), host_dloss, host_a, host_b, sign, n);
    device_.mse_backward(da, dloss, a, b, sign, n);
    call.compare();
  }

  void adamw(float* weights, const float* gradients, float* moment1, float* moment2, std::int64_t n,
             const AdamWStep& step) override {
    Call call(device_, fmt::format("adamw of {}", n));
    const float* const host_gradients = call.in(gradients, n);
    float *const host_weights = call.out(weights, n, kSameBits), *const host_moment1 = call.out(moment1, n, kSameBits);
    cpu_.adamw(host_weights, host_gradients, host_moment1, call.out(moment2, n, kSameBits), n, step);
    device_.adamw(weights, gradients, moment1, moment2, n, step);
    call.compare();
  }
  void sgd(float* weights, const float* gradients, float* velocity, std::int64_t n, const SgdStep& step) override {
    Call call(device_, fmt::format("sgd of {}", n));
    const float* const host_gradients = call.in(gradients, n);
    float* const host_weights = call.out(weights, n, kSameBits);
    cpu_.sgd(host_weights, host_gradients, call.out(step.momentum == 0 ? nullptr : velocity, n, kSameBits), n, step);
    device_.sgd(weights, gradients, velocity, n, step);
    call.compare();
  }

 private:
  static std::string describe(const char* what, const AttentionShape& shape) {
    return fmt::format("{} of {} samples, {} steps, {} heads of {}", what, shape.batch, shape.time, shape.heads,
                       shape.head_size);
  }
  template <typename Do>
  void one(const char* what, float* out, const float* x, std::int64_t n, double tolerance, const Do& run) {
    Call call(device_, fmt::format("{} of {}", what, n));
    const float* const host_x = call.in(x, n);
    run(cpu_, call.out(out, n, tolerance), host_x, n);
    run(device_, out, x, n);
    call.compare();
  }
  template <typename Do>
  void two(const char* what, Into out, const float* a, const float* b, std::int64_t n, double tolerance,
           const Do& run) {
    Call call(device_, fmt::format("{} of {}", what, n));
    const float *const host_a = call.in(a, n), *const host_b = call.in(b, n);
    run(cpu_, call.into(out, n, tolerance), host_a, host_b, n);
    run(device_, out, a, b, n);
    call.compare();
  }

  Kernels& device_;
  Kernels& cpu_;
  const double products_;
};

}  // namespace

double products_may_differ(const Environment& environment) {
  // Factors of TF32 have 10 bits.
  return environment.get("LOCKSTEP_ALLOW_TF32") == "1" ? 1e-2 : kClose;
}

std::unique_ptr<Kernels> checked_kernels(Kernels& device, Kernels& cpu, double products) {
  return std::make_unique<CheckedKernels>(device, cpu, products);
}

}  // namespace lockstep
