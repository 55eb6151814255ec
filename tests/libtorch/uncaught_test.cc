// SPDX-License-Identifier: Apache-2.0
// What a program leaves on stderr when nobody catches an error of LibTorch's own.
#include <thread>

#include "lockstep/comm/init/init_process_group.h"
#include "tests/libtorch/common.h"

namespace lockstep::testing::uncaught_test {
namespace {

TEST(UncaughtDeathTest, AnErrorOfLibTorchsIsOneLineWithItsCauseFirst) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // LibTorch has threads
  const auto multiply = [] {
    const auto group = init_process_group({.backend = "single"});
    std::thread([] { at::ones({2, 3}).matmul(at::ones({4, 6})); }).join();  // outside of the framework's try blocks
  };
  EXPECT_EXIT(multiply(), ::testing::ExitedWithCode(1),
              "fatal: (mm: )?mat1 and mat2 shapes cannot be multiplied \\(2x3 and 4x6\\)\n$");
}

}  // namespace
}  // namespace lockstep::testing::uncaught_test
