// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/unit/tensor/cuda/both.h"

// Indices past 2^31. The arrays are address space; GPUs with so many multiprocessors that each element has a thread of
// its own run the last blocks alone.
namespace lockstep {
namespace {

const int set = [] {
  ::setenv("LOCKSTEP_FAKE_GPU_MEMORY", "137438953472", 1);
  return ::setenv("LOCKSTEP_FAKE_MULTIPROCESSORS", "268435455", 1);
}();

using testing::gpu_kernels;
using testing::wait_for_gpu;

constexpr std::int64_t kPast = (std::int64_t{1} << 31) + 1000;

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
  std::vector<float> last_two(const float* data, std::int64_t count, std::int64_t blocks, const Call& call) {
    {
      const fake_cuda::OnlyBlocks only(std::max<std::int64_t>(0, blocks - 2), 2);
      call();
      wait_for_gpu();
    }
    std::vector<float> values(2);
    runtime_.copy(values.data(), data + count - 2, 2 * sizeof(float), gpu_kernels().stream());
    wait_for_gpu();
    return values;
  }

  DeviceRuntime& runtime_ = device_runtime(DeviceKind::cuda);
  std::vector<std::shared_ptr<void>> memory_;
  Kernels& k_ = gpu_kernels();
};

using Floats = std::vector<float>;

TEST_F(Huge, Elementwise) {
  const float* const a = array<float>(kPast, {1, 2});
  const float* const b = array<float>(kPast, {10, 20});
  float* const c = out(kPast);
  EXPECT_EQ(last_two(c, kPast, (kPast + 1023) / 1024, [&] { k_.add({c, false}, a, b, kPast); }), Floats({11, 22}));
  // Not by fours.
  EXPECT_EQ(last_two(c, kPast, (kPast - 1 + 255) / 256,
                     [&] {
                       k_.scale({c + 1, false}, a + 1, 3, kPast - 1);
                     }),
            Floats({3, 6}));
}

TEST_F(Huge, Optimizer) {
  float* const w = array<float>(kPast, {1, 2});
  const float* const g = array<float>(kPast, {10, 20});
  EXPECT_EQ(last_two(w, kPast, (kPast + 255) / 256, [&] { k_.sgd(w, g, nullptr, kPast, {.learning_rate = 0.5}); }),
            Floats({-4, -8}));
}

TEST_F(Huge, Dropout) {
  const float* const dy = array<float>(kPast, {1, 2});
  const std::uint8_t* const mask = array<std::uint8_t>(kPast, {1, 0});
  float* const dx = out(kPast);
  EXPECT_EQ(last_two(dx, kPast, (kPast + 255) / 256,
                     [&] {
                       k_.dropout_backward({dx, false}, dy, mask, 0.5f, kPast);
                     }),
            Floats({2, 0}));
}

constexpr std::int64_t kColumns = 1024;
constexpr std::int64_t kRows = kPast / kColumns + 1;

TEST_F(Huge, Rows) {
  const std::int64_t count = kRows * kColumns;
  const float* const a = array<float>(count, {1, 2});
  const float* const row = array<float>(kColumns, {10, 20});
  float* const c = out(count);
  EXPECT_EQ(last_two(c, count, kRows, [&] { k_.add_row(c, a, row, kRows, kColumns); }), Floats({11, 22}));
  const std::int64_t tiles = kColumns / 32 * ((kRows + 31) / 32);
  EXPECT_EQ(last_two(c, count, tiles, [&] { k_.transpose({c, false}, a, kRows, kColumns); })[1], 2);
}

TEST_F(Huge, Embedding) {
  const std::int64_t count = kRows * kColumns;
  float* const table = array<float>(count, {1, 2});
  const auto* const index = array<std::int64_t>(1, {kRows - 1});
  float* const one = out(kColumns);
  EXPECT_EQ(last_two(one, kColumns, 1, [&] { k_.embedding(one, table, index, 1, kRows, kColumns); }), Floats({1, 2}));
  const float* const dy = array<float>(kColumns, {10, 20});
  EXPECT_EQ(last_two(table, count, 1,
                     [&] {
                       k_.embedding_backward({table, true}, dy, index, 1, kRows, kColumns);
                     }),
            Floats({11, 22}));
  const auto* const indices = array<std::int64_t>(kRows, {0, kRows - 1});
  float* const c = out(count);
  EXPECT_EQ(last_two(c, count, kRows, [&] { k_.embedding(c, table, indices, kRows, kRows, kColumns); }),
            Floats({11, 22}));
}

TEST_F(Huge, CrossEntropy) {
  const std::int64_t count = kRows * kColumns;
  Floats row(kColumns, -1e30f);
  row[kColumns - 2] = row[kColumns - 1] = 0;
  const float* const logits = array<float>(count, row);
  const auto* const targets = array<std::int64_t>(kRows, {0, kColumns - 1});
  const float* const largest = array<float>(kRows, {0, 0});
  const float* const sums = array<float>(kRows, {2, 2});
  const float* const dloss = array<float>(1, {1});
  const auto* const counted = array<std::int64_t>(1, {4});
  float* const d = out(count);
  EXPECT_EQ(
      last_two(
          d, count, kRows,
          [&] {
            k_.cross_entropy_backward({d, false}, dloss, counted, largest, sums, logits, targets, kRows, kColumns, -1);
          }),
      Floats({0.125f, -0.125f}));
}

}  // namespace
}  // namespace lockstep
