// SPDX-License-Identifier: Apache-2.0
// bench_kernels [MIB]: each kernel of our own tensors on GPU 0, by the device's clock, over arrays of MIB mebibytes
// (default 256; more than a cache holds). Of those that memory bounds, the bytes that they have to move at the least,
// a second, and beside what a copy on the device moves in the same run; of products, operations.
#include <dlfcn.h>
#include <lockstep/base/random.h>
#include <lockstep/device/device_runtime.h>
#include <lockstep/device/stream.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/tensor/kernels.h"

namespace lockstep::benchmark {
namespace {

constexpr DeviceId kGpu{DeviceKind::cuda, 0};

class Bench {
 public:
  explicit Bench(std::int64_t count) : n_(count), runtime_(device_runtime(DeviceKind::cuda)), k_(kernels_of_plugin()) {}

  void run() {
    const DeviceInfo gpu = runtime_.info(kGpu);
    std::printf("%s; arrays of %lld MiB\n%-28s %9s %9s %9s\n", gpu.name.c_str(), static_cast<long long>(n_ >> 18),
                "kernel", "us", "GB/s", "of a copy");
    float *const a = random(n_), *const b = random(n_), *const c = random(n_), *const d = positive(n_);
    const double bytes = static_cast<double>(n_) * sizeof(float);
    copy_ = measure("copy on the device", 2 * bytes,
                    [&] { runtime_.copy(b, a, static_cast<std::size_t>(n_) * 4, k_.stream()); });
    measure("fill", bytes, [&] { k_.fill(b, 3, n_); });
    for (const bool add : {false, true}) {
      const std::string plus = add ? ", added" : "";
      const double more = add ? bytes : 0;  // what is there is read
      const Into to{c, add};
      measure("add" + plus, 3 * bytes + more, [&] { k_.add(to, a, b, n_); });
      measure("multiply" + plus, 3 * bytes + more, [&] { k_.multiply(to, a, b, n_); });
      measure("scale" + plus, 2 * bytes + more, [&] { k_.scale(to, a, 0.5f, n_); });
      measure("gelu_backward" + plus, 3 * bytes + more, [&] { k_.gelu_backward(to, a, b, n_); });
      measure("transpose" + plus, 2 * bytes + more, [&] { k_.transpose(to, a, n_ / 2048, 2048); });
    }
    measure("relu", 2 * bytes, [&] { k_.relu(c, a, n_); });
    measure("relu_backward", 3 * bytes, [&] { k_.relu_backward({c, false}, a, b, n_); });
    measure("tanh", 2 * bytes, [&] { k_.tanh(c, a, n_); });
    measure("tanh_backward", 3 * bytes, [&] { k_.tanh_backward({c, false}, a, b, n_); });
    measure("gelu", 2 * bytes, [&] { k_.gelu(c, a, n_); });
    measure("sum", bytes, [&] { k_.sum({one(), false}, a, 1, n_); });
    measure("sum_squares", bytes, [&] { k_.sum_squares(reinterpret_cast<double*>(one()), a, n_); });
    measure("scale_by", 2 * bytes, [&] { k_.scale_by(c, half(), n_); });
    measure("mse", 2 * bytes, [&] { k_.mse(one(), a, b, n_); });
    measure("mse_backward", 3 * bytes, [&] { k_.mse_backward({c, false}, half(), a, b, 1, n_); });
    for (const std::int64_t columns : {std::int64_t{768}, std::int64_t{4096}}) rows(columns, a, b, c);
    losses(a, c);
    const AdamWStep adamw{.learning_rate = 1e-9, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8};
    measure("adamw", 7 * bytes, [&] { k_.adamw(a, b, c, d, n_, adamw); });
    measure("sgd", 3 * bytes, [&] { k_.sgd(a, b, nullptr, n_, {.learning_rate = 1e-9}); });
    measure("sgd, momentum", 5 * bytes, [&] { k_.sgd(a, b, c, n_, {.learning_rate = 1e-9, .momentum = 0.9}); });
    products(a, b, c);
  }

 private:
  static Kernels& kernels_of_plugin() {
    void* const plugin = dlopen(PLUGIN_FILE, RTLD_NOW | RTLD_LOCAL);
    if (plugin == nullptr) throw std::runtime_error(dlerror());
    return *reinterpret_cast<decltype(&lockstep_plugin_kernels)>(dlsym(plugin, kPluginKernelsSymbol))(0);
  }

  void rows(std::int64_t columns, float* a, float* b, float* c) {
    const std::int64_t rows = n_ / columns;
    const double bytes = static_cast<double>(rows * columns) * sizeof(float);
    const std::string of = ", rows of " + std::to_string(columns);
    float *const gain = random(columns), *const bias = random(columns), *const rstd = random(rows);
    auto* const mean = reinterpret_cast<double*>(random(2 * rows));
    const LayerNormShape shape{.rows = rows, .columns = columns};
    measure("add_row" + of, 2 * bytes, [&] { k_.add_row(c, a, bias, rows, columns); });
    measure("sum_rows" + of, bytes, [&] { k_.sum_rows({bias, false}, a, rows, columns); });
    measure("layer_norm" + of, 2 * bytes, [&] { k_.layer_norm(c, mean, rstd, a, gain, bias, shape); });
    measure("layer_norm_backward" + of, 3 * bytes, [&] {
      k_.layer_norm_backward({c, false}, {gain, false}, {bias, false}, b, a, mean, rstd, gain, shape);
    });
    constexpr std::int64_t kTable = 50257;
    float* const table = random(kTable * columns);
    const std::int64_t* const indices = numbers(rows, kTable);
    measure("embedding" + of, 2 * bytes, [&] { k_.embedding(c, table, indices, rows, kTable, columns); });
    measure("embedding_backward" + of, bytes + static_cast<double>(kTable * columns) * sizeof(float), [&] {
      k_.embedding_backward({table, false}, a, indices, rows, kTable, columns);
    });
    auto* const mask = reinterpret_cast<std::uint8_t*>(random(n_ / 4 + 1));
    const std::int64_t* const ids = numbers(rows, 1 << 30);
    measure("dropout" + of, 2.25 * bytes, [&] { k_.dropout(c, mask, a, {.seed = 1}, ids, rows, columns, 0.9f); });
    measure("dropout_backward" + of, 2.25 * bytes, [&] {
      k_.dropout_backward({c, false}, a, mask, 0.9f, rows * columns);
    });
  }

  void losses(float* a, float* c) {
    for (const std::int64_t columns : {std::int64_t{1000}, std::int64_t{50257}}) {
      const std::int64_t rows = n_ / columns;
      const double bytes = static_cast<double>(rows * columns) * sizeof(float);
      const std::string of = ", " + std::to_string(columns) + " classes";
      float *const largest = random(rows), *const sums = random(rows);
      auto* const counted = reinterpret_cast<std::int64_t*>(random(2));
      const std::int64_t* const targets = numbers(rows, columns);
      measure("cross_entropy" + of, bytes,
              [&] { k_.cross_entropy(one(), counted, largest, sums, a, targets, rows, columns, -1); });
      measure("cross_entropy_backward" + of, 2 * bytes, [&] {
        k_.cross_entropy_backward({c, false}, half(), counted, largest, sums, a, targets, rows, columns, -1);
      });
    }
  }

  void products(float* a, float* b, float* c) {
    std::printf("%-28s %9s %9s\n", "product", "us", "TFLOP/s");
    const auto product = [&](const char* name, const Gemm& gemm) {
      operations(
          name,
          2.0 * static_cast<double>(gemm.rows) * static_cast<double>(gemm.columns) * static_cast<double>(gemm.inner),
          [&] { k_.gemm(gemm); });
    };
    // x [4096, 768] W [768, 3072], and what its way back is: dx = dy W^T, dW = x^T dy.
    product("4096 x 768 by 768 x 3072",
            {.rows = 4096, .columns = 3072, .inner = 768, .a = {a, 768}, .b = {b, 3072}, .c = {c, false}, .ldc = 3072});
    product("  its dx", {.rows = 4096,
                         .columns = 768,
                         .inner = 3072,
                         .a = {a, 3072},
                         .b = {.data = b, .stride = 3072, .transposed = true},
                         .c = {c, false},
                         .ldc = 768});
    product("  its dW", {.rows = 768,
                         .columns = 3072,
                         .inner = 4096,
                         .a = {.data = a, .stride = 768, .transposed = true},
                         .b = {b, 3072},
                         .c = {c, false},
                         .ldc = 3072});
    product(
        "4096 x 4096 by 4096 x 4096",
        {.rows = 4096, .columns = 4096, .inner = 4096, .a = {a, 4096}, .b = {b, 4096}, .c = {c, false}, .ldc = 4096});
    // GPT-2's: 12 heads of 64, causal products done in full.
    for (const auto& [batch, time] : {std::pair<std::int64_t, std::int64_t>{8, 512}, {4, 1024}, {32, 64}}) {
      const AttentionShape shape{.batch = batch, .time = time, .heads = 12, .head_size = 64};
      const double each = 2.0 * static_cast<double>(batch * time * time * 768);
      float* const weights = random(batch * 12 * time * time);
      const std::string name = "attention " + std::to_string(batch) + " x " + std::to_string(time);
      operations(name, 2 * each, [&] { k_.attention(c, weights, a, shape); });
      operations(name + ", back", 4 * each, [&] { k_.attention_backward({c, false}, b, weights, a, shape); });
    }
  }

  double measure(const std::string& name, double bytes, const std::function<void()>& call) {
    const double us = median_us(call), rate = bytes / us / 1e3;
    std::printf("%-28s %9.1f %9.0f", name.c_str(), us, rate);
    if (copy_ > 0) std::printf(" %9.2f", rate / copy_);
    std::printf("\n");
    return rate;
  }
  void operations(const std::string& name, double count, const std::function<void()>& call) {
    const double us = median_us(call);
    std::printf("%-28s %9.1f %9.1f\n", name.c_str(), us, count / us / 1e6);
  }

  double median_us(const std::function<void()>& call) {
    constexpr int kWarm = 3, kTimes = 15;
    Event begin(kGpu, true), end(kGpu, true);
    std::vector<double> times;
    for (int i = 0; i < kWarm + kTimes; ++i) {
      begin.record(k_.stream());
      call();
      end.record(k_.stream());
      end.synchronize(Deadline::after(std::chrono::seconds(60)));
      if (i >= kWarm) times.push_back(std::chrono::duration<double, std::micro>(end.elapsed_since(begin)).count());
    }
    std::nth_element(times.begin(), times.begin() + kTimes / 2, times.end());
    return times[kTimes / 2];
  }

  // Memory that lives as long as this; `make` gives element i.
  template <typename T, typename Make>
  T* array(std::int64_t count, const Make& make) {
    std::vector<T> values(static_cast<std::size_t>(count));
    for (T& value : values) value = make();
    const std::size_t bytes = values.size() * sizeof(T);
    memory_.push_back(runtime_.allocate(bytes, k_.stream()));
    runtime_.copy(memory_.back().get(), values.data(), bytes, k_.stream());
    runtime_.synchronize(k_.stream(), Deadline::after(std::chrono::seconds(60)));
    return static_cast<T*>(memory_.back().get());
  }
  float* random(std::int64_t count) {
    return array<float>(count, [this] { return 2 * generator_.uniform() - 1; });
  }
  float* positive(std::int64_t count) {
    return array<float>(count, [this] { return generator_.uniform(); });
  }
  const std::int64_t* numbers(std::int64_t count, std::int64_t limit) {
    return array<std::int64_t>(
        count, [&] { return static_cast<std::int64_t>(generator_.below(static_cast<std::uint64_t>(limit))); });
  }
  float* one() { return one_ != nullptr ? one_ : one_ = random(2); }
  float* half() {
    return half_ != nullptr ? half_ : half_ = array<float>(1, [] { return 0.5f; });
  }

  std::int64_t n_;
  DeviceRuntime& runtime_;
  Kernels& k_;
  Generator generator_{2026};
  std::vector<std::shared_ptr<void>> memory_;
  float* one_ = nullptr;
  float* half_ = nullptr;
  double copy_ = 0;  // GB/s
};

}  // namespace
}  // namespace lockstep::benchmark

int main(int argc, char** argv) {
  try {
    const std::int64_t mebibytes = argc > 1 ? std::stoll(argv[1]) : 256;
    if (mebibytes < 64) throw std::invalid_argument("MIB is 64 or more: a matrix of 4096 x 4096 takes as much");
    lockstep::benchmark::Bench(mebibytes << 18).run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_kernels: %s\n", error.what());
    return 1;
  }
}
