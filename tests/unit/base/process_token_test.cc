// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/process_token.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "tests/support/child.h"

namespace lockstep::process_token_test {
namespace {

std::uint64_t token_of_a_child() {
  testing::Child child([](const testing::Line& line) { return line.tell(process_token()) ? 0 : 1; });
  const auto token = child.told<std::uint64_t>();
  EXPECT_EQ(child.wait(), 0);
  return token;
}

TEST(ProcessToken, IsOneForAllThreads) {
  const std::uint64_t own = process_token();
  EXPECT_EQ(process_token(), own);
  std::uint64_t other = 0;
  std::thread([&other] { other = process_token(); }).join();
  EXPECT_EQ(other, own);
}

TEST(ProcessToken, ForkedChildrenHaveTheirOwn) {
  std::set<std::uint64_t> tokens{process_token()};
  for (int i = 0; i < 3; ++i) tokens.insert(token_of_a_child());
  EXPECT_EQ(tokens.size(), 4u);
}

}  // namespace
}  // namespace lockstep::process_token_test
