// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/checked_kernels.h"

#include <gmock/gmock.h>

#include "lockstep/base/error.h"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/unit/tensor/cuda/both.h"

// The comparison of a GPU's calls with the CPU's: it lets pass what is right, and names what is not.
namespace lockstep {
namespace {

using testing::gpu_kernels;
using ::testing::HasSubstr;
using testing::random_floats;
using testing::random_indices;

constexpr std::int64_t kRows = 6, kColumns = 10, kCount = kRows * kColumns;

// One call of every operation, each counted.
int call_all(Kernels& k, testing::Arrays& a) {
  const auto x = random_floats(kCount, 1), y = random_floats(kCount, 2), row = random_floats(kColumns, 3);
  const auto indices = random_indices(kRows, 4, kRows);
  const std::vector<float> one{0.5f};
  int calls = 0;
  const auto into = [&](bool add) { return a.into(kCount, add); };
  const auto out = [&] { return a.out<float>(kCount); };
  const auto in = [&](const std::vector<float>& values) { return a.in(values); };
  for (const bool add : {false, true}) {
    k.transpose(into(add), in(x), kRows, kColumns);
    k.add(into(add), in(x), in(y), kCount);
    k.multiply(into(add), in(x), in(y), kCount);
    k.scale(into(add), in(x), 0.3f, kCount);
    k.relu_backward(into(add), in(x), in(y), kCount);
    k.tanh_backward(into(add), in(x), in(y), kCount);
    k.gelu_backward(into(add), in(x), in(y), kCount);
    k.sum_rows(a.into(kColumns, add), in(x), kRows, kColumns);
    k.sum(a.into(1, add), in(x), 0.5f, kCount);
    k.expand(into(add), in(one), 2, kCount);
    k.embedding_backward(into(add), in(x), a.in(indices), kRows, kRows, kColumns);
    k.mse_backward(into(add), in(one), in(x), in(y), 1, kCount);
    k.gemm({.rows = kRows,
            .columns = kRows,
            .inner = kColumns,
            .a = {in(x), kColumns},
            .b = {.data = in(y), .stride = kColumns, .transposed = true},
            .c = a.into(kRows * kRows, add),
            .ldc = kRows});
    calls += 13;
  }
  k.fill(out(), 3, kCount);
  k.relu(out(), in(x), kCount);
  k.tanh(out(), in(x), kCount);
  k.gelu(out(), in(x), kCount);
  k.add_row(out(), in(x), in(row), kRows, kColumns);
  k.sum_squares(a.out<double>(1), in(x), kCount);
  k.clip_factor(a.out<double>(1), a.out<float>(1), a.in(std::vector<double>{1, 2}), 2, 0.5);
  k.scale_by(a.inout(x), in(one), kCount);
  const LayerNormShape shape{.rows = kRows, .columns = kColumns};
  double* const mean = a.out<double>(kRows);
  float* const rstd = a.out<float>(kRows);
  k.layer_norm(out(), mean, rstd, in(x), in(row), in(row), shape);
  k.layer_norm_backward(into(true), a.into(kColumns, false), a.into(kColumns, true), in(y), in(x), mean, rstd, in(row),
                        shape);
  k.layer_norm_backward(into(true), {}, {}, in(y), in(x), mean, rstd, in(row), shape);
  k.check_indices(IndexedBy::embedding, a.in(indices), kRows, kRows, -1);
  k.embedding(out(), in(x), a.in(indices), kRows, kRows, kColumns);
  const AttentionShape heads{.batch = 2, .time = 3, .heads = 2, .head_size = 5};
  const auto qkv = random_floats(3 * kCount, 5);
  float* const weights = a.out<float>(2 * 2 * 9);
  k.attention(out(), weights, in(qkv), heads);
  k.attention_backward(a.into(3 * kCount, true), in(y), weights, in(qkv), heads);
  std::uint8_t* const mask = a.out<std::uint8_t>(kCount);
  k.dropout(out(), mask, in(x), {.seed = 1, .layer = 2, .step = 3}, a.in(indices), kRows, kColumns, 0.7f);
  k.dropout_backward(into(false), in(x), mask, 0.7f, kCount);
  std::int64_t* const counted = a.out<std::int64_t>(1);
  float *const largest = a.out<float>(kRows), *const sums = a.out<float>(kRows);
  k.cross_entropy(a.out<float>(1), counted, largest, sums, in(x), a.in(indices), kRows, kColumns, -1);
  k.cross_entropy_backward(into(false), in(one), counted, largest, sums, in(x), a.in(indices), kRows, kColumns, -1);
  k.mse(a.out<float>(1), in(x), in(y), kCount);
  k.adamw(a.inout(x), in(y), a.inout(x), a.inout(random_floats(kCount, 8)), kCount,
          {.learning_rate = 1e-3, .epsilon = 1});
  k.sgd(a.inout(x), in(y), a.inout(x), kCount, {.learning_rate = 1e-3, .momentum = 0.9});
  k.sgd(a.inout(x), in(y), nullptr, kCount, {.learning_rate = 1e-3});
  return calls + 23;
}

TEST(CheckedKernels, LetPassWhatIsRight) {
  const auto checked = checked_kernels(gpu_kernels(), cpu_kernels());
  testing::Arrays arrays(*checked, 1), plain(gpu_kernels(), 1);
  EXPECT_EQ(call_all(*checked, arrays), 49);
  call_all(gpu_kernels(), plain);
  EXPECT_EQ(arrays.results(), plain.results());
}

// `operation`: of those of the fake device, from the call on; it is the kernel, behind the copies of what the call
// reads.
template <typename Body>
std::string error_without(int operation, const Body& body) {
  const auto checked = checked_kernels(gpu_kernels(), cpu_kernels());
  testing::Arrays arrays(*checked, 0);
  testing::wait_for_gpu();
  try {
    body(*checked, arrays, [&] { fake_cuda::inject("operation=skip@" + std::to_string(operation)); });
  } catch (const Error& error) {
    fake_cuda::heal();
    return error.what();
  }
  fake_cuda::heal();
  return "no error";
}

TEST(CheckedKernels, NameTheFirstCallThatDiffers) {
  const auto x = random_floats(kCount, 1);
  EXPECT_THAT(error_without(4,
                            [&](Kernels& k, testing::Arrays& a, const auto& go_wrong) {
                              const float *const p = a.in(x), *const q = a.in(x);
                              float* const out = a.out<float>(kCount);
                              go_wrong();
                              k.add({out, false}, p, q, kCount);
                            }),
              HasSubstr("LOCKSTEP_KERNEL_CHECK: add of 60 on cuda:0 differs from the CPU's in array 3 of its "
                        "arguments, element 0 of 60: "));
  EXPECT_THAT(
      error_without(
          4,
          [&](Kernels& k, testing::Arrays& a, const auto& go_wrong) {
            const float *const p = a.in(x), *const q = a.in(x);
            float* const out = a.inout(std::vector<float>(4, 7.0f));
            go_wrong();
            k.gemm({.rows = 2, .columns = 2, .inner = 10, .a = {p, 10}, .b = {q, 2}, .c = {out, true}, .ldc = 2});
          }),
      HasSubstr(
          "gemm of 2 x 10 by 10 x 2 on cuda:0 differs from the CPU's in array 3 of its arguments, element 0 of 4: 7 "));
}

}  // namespace
}  // namespace lockstep
