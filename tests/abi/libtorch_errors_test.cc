// SPDX-License-Identifier: Apache-2.0
// As errors_test.cc, of liblockstep_libtorch: its own error, and one of liblockstep's on its way through it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/libtorch.h"

namespace lockstep::testing::libtorch_errors_test {
namespace {

TEST(AbiLibtorchErrors, LibtorchThrowsAndProgramCatchesByType) {
  try {
    const libtorch::DistributedSampler sampler(10, 3, 2);
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(&typeid(error), &typeid(InvalidArgument));
  }
}

TEST(AbiLibtorchErrors, CoreThrowsThroughLibtorchAndProgramCatchesByType) {
  const torch::nn::Linear layer(2, 2);
  try {
    libtorch::load_weights("/nonexistent/state.safetensors", *layer);
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(&typeid(error), &typeid(InvalidArgument));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("there is no such file"));
  }
}

}  // namespace
}  // namespace lockstep::testing::libtorch_errors_test
