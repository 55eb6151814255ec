// SPDX-License-Identifier: Apache-2.0
// As errors_test.cc, of liblockstep_libtorch: its own error, and one of liblockstep's on its way through it.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/libtorch.h"

namespace lockstep::testing::libtorch_errors_test {
namespace {

template <typename Call>
void expect_invalid_argument(Call&& call) {
  try {
    call();
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(&typeid(error), &typeid(InvalidArgument)) << error.what();
  }
}

TEST(AbiLibtorchErrors, LibrariesThrowAndProgramCatchesByType) {
  const torch::nn::Linear layer(2, 2);
  expect_invalid_argument([] { const libtorch::DistributedSampler sampler(10, 3, 2); });
  expect_invalid_argument([&] { libtorch::load_weights("/nonexistent/state.safetensors", *layer); });
}

}  // namespace
}  // namespace lockstep::testing::libtorch_errors_test
