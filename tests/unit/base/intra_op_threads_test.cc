// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/intra_op_threads.h"

#include <gtest/gtest.h>

#include <climits>

namespace lockstep::intra_op_threads_test {
namespace {

std::optional<int> by(const std::string& text) { return threads_by_variable(Environment({{"OMP_NUM_THREADS", text}})); }

TEST(IntraOpThreads, TheVariableIsReadAsOpenMpReadsIt) {
  EXPECT_EQ(threads_by_variable(Environment()), std::nullopt);
  EXPECT_EQ(by("3"), 3);
  EXPECT_EQ(by("4,2"), 4);
  EXPECT_EQ(by("99999999999"), INT_MAX);
  for (const std::string bad : {"", "0", "-1", "banana", "2x", ",2", "1.5", "99999999999999999999"}) {
    EXPECT_EQ(by(bad), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace lockstep::intra_op_threads_test
