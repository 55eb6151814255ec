#include "runtime/base/hash.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace lockstep {
namespace {

// Values of the reference implementation: ranks of different builds compare these.
TEST(Hash64, IsXxh3) {
  EXPECT_EQ(hash64(""), 0x2d06800538d394c2ull);
  EXPECT_EQ(hash64("abc"), 0x78af5f94892f3950ull);
}

TEST(Hash64, DependsOnEveryByteLengthAndSeed) {
  std::set<std::uint64_t> seen;
  std::string text(300, 'x');
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] = 'y';
    seen.insert(hash64(text));
    text[i] = 'x';
    seen.insert(hash64(std::string_view(text).substr(0, i)));
    seen.insert(hash64(text, i));
  }
  EXPECT_EQ(seen.size(), 900u);
}

}  // namespace
}  // namespace lockstep
