// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/checked_kernels.h"

#include <gmock/gmock.h>

#include "lockstep/base/error.h"
#include "runtime/tensor/every_operation.h"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/unit/tensor/cuda/both.h"

// The comparison of a GPU's calls with the CPU's: it lets pass what is right, and names what is not.
namespace lockstep {
namespace {

using testing::gpu_kernels;
using ::testing::HasSubstr;
using testing::random_floats;

constexpr std::int64_t kCount = 60;

TEST(CheckedKernels, LetPassWhatIsRight) {
  const auto checked = checked_kernels(gpu_kernels(), cpu_kernels());
  testing::Arrays arrays(*checked, 1), plain(gpu_kernels(), 1);
  for (const auto& call : calls_of_every_operation(*checked, arrays)) call();
  for (const auto& call : calls_of_every_operation(gpu_kernels(), plain)) call();
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
