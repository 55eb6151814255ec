// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/random_bytes.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <vector>

namespace lockstep::random_bytes_test {
namespace {

TEST(RandomBytes, AreDrawnEachTime) {
  std::set<std::array<std::byte, 16>> seen;
  for (int i = 0; i < 1000; ++i) {
    std::array<std::byte, 16> bytes{};
    fill_random(bytes);
    EXPECT_TRUE(seen.insert(bytes).second);
  }
}

// getrandom(2) gives at most 256 bytes without a break, and 32 MiB at once: a larger request takes several.
TEST(RandomBytes, FillEveryByteOfALargeBuffer) {
  std::vector<std::byte> bytes(std::size_t{33} << 20);
  fill_random(bytes);
  for (std::size_t start = 0; start < bytes.size(); start += std::size_t{1} << 20) {
    std::set<std::byte> values;
    for (std::size_t i = 0; i < 256; ++i) values.insert(bytes[start + i]);
    EXPECT_GT(values.size(), 64u) << "at " << start;  // of 256 draws from 256 values some 162 differ
  }
}

TEST(RandomBytes, NoneIsFine) { fill_random({}); }

}  // namespace
}  // namespace lockstep::random_bytes_test
