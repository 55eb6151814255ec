// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "lockstep/base/error.h"
#include "lockstep/tensor/kernel_trial.h"
#include "tests/fakes/cudart/fake_cuda.h"

// What `lockstep doctor` asks of a GPU's kernels, through the shared libraries.
namespace lockstep::library_test {
namespace {

using ::testing::HasSubstr;

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
  EXPECT_THAT(text, HasSubstr("kernel transpose on cuda:2 differs from the CPU's in element 0 of 60: "));
}

}  // namespace
}  // namespace lockstep::library_test
