// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/unit/tensor/cuda/both.h"

// Indices past 2^31. The arrays are address space; GPUs with so many multiprocessors that each element has a thread of
// its own run the last blocks alone.
namespace lockstep::huge_test {
namespace {

const int set = [] {
  ::setenv("LOCKSTEP_FAKE_GPU_MEMORY", "137438953472", 1);
  ::setenv("LOCKSTEP_CUBLASLT_LIB", "none", 1);  // products by kernels of our own
  return ::setenv("LOCKSTEP_FAKE_MULTIPROCESSORS", "268435455", 1);
}();

using testing::gpu_kernels;
using testing::wait_for_gpu;
using Floats = std::vector<float>;

constexpr std::int64_t kPast = (std::int64_t{1} << 31) + 1000;
constexpr std::int64_t kColumns = 1024;
constexpr std::int64_t kRows = kPast / kColumns + 1;
constexpr std::int64_t kTable = kRows * kColumns;
constexpr std::int64_t kTiles = kColumns / 32 * ((kRows + 31) / 32);

constexpr std::int64_t blocks_of(std::int64_t elements, std::int64_t of_block = 256) {
  return (elements + of_block - 1) / of_block;
}

class Huge : public ::testing::Test {
 protected:
  // Its last elements are `last`; before them are some of NaN, or whatever is there.
  template <typename T>
  T* array(std::int64_t count, const std::vector<T>& last) {
    memory_.push_back(runtime_.allocate(static_cast<std::size_t>(count) * sizeof(T), gpu_kernels().stream()));
    T* const data = static_cast<T*>(memory_.back().get());
    runtime_.copy(data + count - static_cast<std::int64_t>(last.size()), last.data(), last.size() * sizeof(T),
                  gpu_kernels().stream());
    return data;
  }
  float* out(std::int64_t count) { return array<float>(count, {-1, -1}); }
  // What the last two elements are, once the last blocks of `blocks` have run.
  template <typename Call>
  Floats last_two(const float* data, std::int64_t count, std::int64_t blocks, const Call& call) {
    {
      const fake_cuda::OnlyBlocks only(std::max<std::int64_t>(0, blocks - 2), 2);
      call();
      wait_for_gpu();
    }
    Floats values(2);
    runtime_.copy(values.data(), data + count - 2, 2 * sizeof(float), gpu_kernels().stream());
    wait_for_gpu();
    return values;
  }

  DeviceRuntime& runtime_ = device_runtime(DeviceKind::cuda);
  std::vector<std::shared_ptr<void>> memory_;
  Kernels& k_ = gpu_kernels();
};

TEST_F(Huge, Elements) {
  const float* const a = array<float>(kPast, {1, 2});
  const float* const b = array<float>(kPast, {10, 21});
  const float* const dloss = array<float>(1, {static_cast<float>(kPast)});
  std::uint8_t* const mask = array<std::uint8_t>(kPast, {1, 0});
  const auto* const ids = array<std::int64_t>(1, {7});
  float* const c = out(kPast);
  const Into into_c{c, false};
  const AdamWStep step{.learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};
  Floats w{-3, -10.5f}, m{0.5f, -0.5f}, v{0.25f, 1};
  const Floats g{10, 21};
  float* const moment1 = array<float>(kPast, m);
  float* const moment2 = array<float>(kPast, v);
  cpu_kernels().adamw(w.data(), g.data(), m.data(), v.data(), 2, step);
  struct Case {
    const char* name;
    Floats wanted;
    std::int64_t of_block;
    std::function<void()> call;
  };
  for (const Case& one : {
           Case{"by fours", {11, 23}, 1024, [&] { k_.add(into_c, a, b, kPast); }},
           Case{"mse_backward", {18, 38}, 256, [&] { k_.mse_backward(into_c, dloss, b, a, 1, kPast); }},
           Case{"expand", {6, 6}, 256, [&] { k_.expand(into_c, a + kPast - 1, 3, kPast); }},
           Case{"dropout_backward", {2, 0}, 256, [&] { k_.dropout_backward(into_c, a, mask, 0.5f, kPast); }},
           // From what the one before has left.
           Case{"sgd", {-3, -10.5f}, 256, [&] { k_.sgd(c, b, nullptr, kPast, {.learning_rate = 0.5}); }},
           Case{"adamw", w, 256, [&] { k_.adamw(c, b, moment1, moment2, kPast, step); }},
           // Everything is kept.
           Case{"dropout", {1, 2}, 1024, [&] { k_.dropout(c, mask, a, {.seed = 1}, ids, 1, kPast, 1.0f); }},
       }) {
    EXPECT_EQ(last_two(c, kPast, blocks_of(kPast, one.of_block), one.call), one.wanted) << one.name;
  }
  const auto not_by_fours = [&] { k_.scale({c + 1, false}, a + 1, 3, kPast - 1); };
  EXPECT_EQ(last_two(c, kPast, blocks_of(kPast - 1), not_by_fours), Floats({3, 6}));
}

TEST_F(Huge, Rows) {
  const float* const a = array<float>(kTable, {1, 2});
  const float* const row = array<float>(kColumns, {10, 20});
  float* const c = out(kTable);
  EXPECT_EQ(last_two(c, kTable, kRows, [&] { k_.add_row(c, a, row, kRows, kColumns); }), Floats({11, 22}));
  EXPECT_EQ(last_two(c, kTable, kTiles, [&] { k_.transpose({c, false}, a, kRows, kColumns); })[1], 2);
}

TEST_F(Huge, LayerNorm) {
  Floats row(kColumns, 1), ones(kColumns, 1), zeros(kColumns, 0);
  row[kColumns - 2] = 3;
  row[kColumns - 1] = -5;
  const float* const x = array<float>(kTable, row);
  const float* const gain = array<float>(kColumns, ones);
  const float* const bias = array<float>(kColumns, zeros);
  double* const mean = array<double>(kRows, {0, 0});
  float* const rstd = array<float>(kRows, {0, 0});
  float* const y = out(kTable);
  const LayerNormShape shape{kRows, kColumns}, one_row{1, kColumns};
  Floats wanted(kColumns), slope(kColumns);
  double m = 0;
  float s = 0;
  cpu_kernels().layer_norm(wanted.data(), &m, &s, row.data(), ones.data(), zeros.data(), one_row);
  cpu_kernels().layer_norm_backward({slope.data(), false}, {}, {}, row.data(), row.data(), &m, &s, ones.data(),
                                    one_row);
  const auto expect_near = [](const Floats& seen, const Floats& all) {
    EXPECT_NEAR(seen[0], all[kColumns - 2], 1e-4);
    EXPECT_NEAR(seen[1], all[kColumns - 1], 1e-4);
  };
  expect_near(last_two(y, kTable, kRows, [&] { k_.layer_norm(y, mean, rstd, x, gain, bias, shape); }), wanted);
  const auto backward = [&] { k_.layer_norm_backward({y, false}, {}, {}, x, x, mean, rstd, gain, shape); };
  expect_near(last_two(y, kTable, kRows, backward), slope);
}

TEST_F(Huge, Product) {
  const float* const column = array<float>(kRows, {2, 3});
  const float* const row = array<float>(kColumns, {10, 20});
  float* const c = out(kTable);
  const auto product = [&](MatrixView a, MatrixView b, float* to, std::int64_t columns, std::int64_t inner) {
    k_.gemm({.rows = kRows, .columns = columns, .inner = inner, .a = a, .b = b, .c = {to, false}, .ldc = columns});
  };
  EXPECT_EQ(last_two(c, kTable, kTiles,
                     [&] {
                       product({column, 1}, {row, kColumns}, c, kColumns, 1);
                     }),
            Floats({30, 60}));
  const Floats ones(kColumns, 1);
  const float* const a = array<float>(kTable, ones);
  const float* const b = array<float>(kColumns, ones);
  float* const sums = out(kRows);
  const auto call = [&] { product({a, kColumns}, {b, 1}, sums, 1, kColumns); };
  EXPECT_EQ(last_two(sums, kRows, blocks_of(kRows, 32), call)[1], static_cast<float>(kColumns));
}

TEST_F(Huge, Embedding) {
  float* const table = array<float>(kTable, {1, 2});
  const auto* const index = array<std::int64_t>(1, {kRows - 1});
  float* const one = out(kColumns);
  EXPECT_EQ(last_two(one, kColumns, 1, [&] { k_.embedding(one, table, index, 1, kRows, kColumns); }), Floats({1, 2}));
  const float* const dy = array<float>(kColumns, {10, 20});
  const auto backward = [&] { k_.embedding_backward({table, true}, dy, index, 1, kRows, kColumns); };
  EXPECT_EQ(last_two(table, kTable, 1, backward), Floats({11, 22}));
  const auto* const indices = array<std::int64_t>(kRows, {0, kRows - 1});
  float* const c = out(kTable);
  EXPECT_EQ(last_two(c, kTable, kRows, [&] { k_.embedding(c, table, indices, kRows, kRows, kColumns); }),
            Floats({11, 22}));
}

TEST_F(Huge, CrossEntropy) {
  Floats row(kColumns, -1e30f);
  row[kColumns - 2] = row[kColumns - 1] = 0;
  const float* const logits = array<float>(kTable, row);
  const auto* const targets = array<std::int64_t>(kRows, {0, kColumns - 1});
  float* const largest = array<float>(kRows, {0, 0});
  float* const sums = array<float>(kRows, {2, 2});
  const float* const dloss = array<float>(1, {1});
  auto* const counted = array<std::int64_t>(1, {4});
  float* const d = out(kTable);
  const auto backward = [&] {
    k_.cross_entropy_backward({d, false}, dloss, counted, largest, sums, logits, targets, kRows, kColumns, -1);
  };
  EXPECT_EQ(last_two(d, kTable, kRows, backward), Floats({0.125f, -0.125f}));
  // The row before has no logits.
  const auto forward = [&] { k_.cross_entropy(d, counted, largest, sums, logits, targets, kRows, kColumns, -1); };
  EXPECT_EQ(last_two(sums, kRows, kRows, forward)[1], 2);
}

}  // namespace
}  // namespace lockstep::huge_test
