// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <cstdlib>

#include "lockstep/autograd/ops.h"
#include "lockstep/base/error.h"
#include "lockstep/tensor/kernel_trial.h"
#include "lockstep/tensor/tensor.h"
#include "tests/fakes/cudart/fake_cuda.h"

// From a tensor to its device's kernels, as a program with the shared libraries goes: what LOCKSTEP_KERNEL_CHECK puts
// between.
namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error_of_sum(DeviceId device) {
  try {
    const Tensor a = Tensor::of(Shape({2}), {1, 2}).to(device), b = Tensor::of(Shape({2}), {10, 20}).to(device);
    // Three copies come before the kernel where its result is checked.
    fake_cuda::inject("operation=skip@4");
    const Tensor sum = add(a, b);
    fake_cuda::heal();
    EXPECT_THAT(sum.to_vector(), ElementsAre(11, 22));
  } catch (const Error& error) {
    fake_cuda::heal();
    return error.what();
  }
  return "no error";
}

TEST(KernelCheck, IsReadWithTheFirstTensorOfADevice) {
  ::setenv("LOCKSTEP_KERNEL_CHECK", "perhaps", 1);
  EXPECT_THAT(error_of_sum({DeviceKind::cuda, 0}),
              HasSubstr("LOCKSTEP_KERNEL_CHECK='perhaps' is unknown; '1' or '0' (the default)"));
  ::setenv("LOCKSTEP_KERNEL_CHECK", "1", 1);
  EXPECT_THAT(error_of_sum({DeviceKind::cuda, 0}),
              HasSubstr("LOCKSTEP_KERNEL_CHECK: add of 2 on cuda:0 differs from the CPU's"));
  ::unsetenv("LOCKSTEP_KERNEL_CHECK");
  EXPECT_EQ(error_of_sum({DeviceKind::cuda, 1}), "no error");
}

TEST(KernelTrial, ComparesEveryOperation) {
  const KernelTrial trial = try_kernels({DeviceKind::cuda, 2}, Deadline::after(std::chrono::seconds(60)));
  EXPECT_EQ(trial.operations, 49);
  EXPECT_EQ(trial.compared, 49);
  EXPECT_EQ(try_kernels({DeviceKind::cuda, 2}, Deadline::after({})).compared, 0) << "past its time";
}

TEST(KernelTrial, NamesTheOperationThatDiffers) {
  fake_cuda::inject("cudaLaunchKernel=skip@1");
  std::string text = "no error";
  try {
    static_cast<void>(try_kernels({DeviceKind::cuda, 2}, Deadline::after(std::chrono::seconds(60))));
  } catch (const Error& error) {
    text = error.what();
  }
  fake_cuda::heal();
  EXPECT_THAT(text, HasSubstr("transpose of 6 x 10 on cuda:2 differs from the CPU's"));
}

}  // namespace
}  // namespace lockstep
