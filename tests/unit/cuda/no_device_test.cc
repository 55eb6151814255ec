// SPDX-License-Identifier: Apache-2.0
// Why there is no GPU, in words.
#include "runtime/cuda/no_device.h"

#include <gtest/gtest.h>

#include "tests/support/error_of.h"

namespace lockstep::cuda::no_device_test {
namespace {

using lockstep::testing::expect_text;

TEST(NoDevice, IsASentenceWithARemedy) {
  expect_text(why_no_device(cudaErrorInsufficientDriver, 0, {}), {"no NVIDIA driver", "docker run --gpus all"});
  expect_text(why_no_device(cudaErrorInsufficientDriver, 11040, {}), {"made for CUDA 11.4", "install a newer driver"});
  expect_text(why_no_device(cudaErrorNoDevice, 13000, {}), {"shows no GPU"});
  expect_text(why_no_device(cudaErrorNoDevice, 13000, "7"), {"CUDA_VISIBLE_DEVICES='7'", "unset"});
  expect_text(why_no_device(cudaErrorNoDevice, 13000, ""), {"CUDA_VISIBLE_DEVICES=''"});
  expect_text(why_no_device(cudaErrorStubLibrary, 0, {}), {"LD_LIBRARY_PATH"});
  expect_text(why_no_device(cudaErrorSystemNotReady, 13000, {}), {"802", "nvidia-fabricmanager"});
  expect_text(why_no_device(cudaErrorSystemDriverMismatch, 13000, {}), {"803", "two versions", "reboot"});
  expect_text(why_no_device(cudaErrorDevicesUnavailable, 13000, {}), {"46", "exclusive-process mode", "nvidia-smi"});
  expect_text(why_no_device(cudaErrorUnknown, 13000, {}), {"CUDA does not start"});
}

}  // namespace
}  // namespace lockstep::cuda::no_device_test
