// SPDX-License-Identifier: Apache-2.0
// Named values, and how those of different numbers of ranks are compared.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace lockstep::testing {

using Values = std::map<std::string, std::vector<float>>;

// Per tensor: no element is further off than `tolerance` times the largest.
inline void expect_near(const Values& seen, const Values& wanted, double tolerance = 1e-5) {
  ASSERT_EQ(seen.size(), wanted.size());
  for (const auto& [name, values] : wanted) {
    ASSERT_TRUE(seen.contains(name)) << name;
    ASSERT_EQ(seen.at(name).size(), values.size()) << name;
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::abs(value));
    ASSERT_GT(largest, 0) << name << " is zero everywhere, which proves nothing";
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(seen.at(name)[i], values[i], tolerance * largest) << name;
  }
}

}  // namespace lockstep::testing
