// Why there is no GPU, in words.
#include "runtime/cuda/no_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NoDevice, IsASentenceWithARemedy) {
  EXPECT_THAT(why_no_device(cudaErrorInsufficientDriver, 0, {}),
              AllOf(HasSubstr("no NVIDIA driver"), HasSubstr("docker run --gpus all")));
  EXPECT_THAT(why_no_device(cudaErrorInsufficientDriver, 11040, {}),
              AllOf(HasSubstr("made for CUDA 11.4"), HasSubstr("install a newer driver")));
  EXPECT_THAT(why_no_device(cudaErrorNoDevice, 13000, {}), HasSubstr("shows no GPU"));
  EXPECT_THAT(why_no_device(cudaErrorNoDevice, 13000, "7"),
              AllOf(HasSubstr("CUDA_VISIBLE_DEVICES='7'"), HasSubstr("unset")));
  EXPECT_THAT(why_no_device(cudaErrorNoDevice, 13000, ""), HasSubstr("CUDA_VISIBLE_DEVICES=''"));
  EXPECT_THAT(why_no_device(cudaErrorStubLibrary, 0, {}), HasSubstr("LD_LIBRARY_PATH"));
  EXPECT_THAT(why_no_device(cudaErrorSystemNotReady, 13000, {}),
              AllOf(HasSubstr("802"), HasSubstr("nvidia-fabricmanager")));
  EXPECT_THAT(why_no_device(cudaErrorSystemDriverMismatch, 13000, {}),
              AllOf(HasSubstr("803"), HasSubstr("two versions"), HasSubstr("reboot")));
  EXPECT_THAT(why_no_device(cudaErrorDevicesUnavailable, 13000, {}),
              AllOf(HasSubstr("46"), HasSubstr("exclusive-process mode"), HasSubstr("nvidia-smi")));
  EXPECT_THAT(why_no_device(cudaErrorUnknown, 13000, {}), HasSubstr("CUDA does not start"));
}

}  // namespace
}  // namespace lockstep::cuda
