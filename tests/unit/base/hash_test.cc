// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace lockstep::hash_test {
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

TEST(Hasher64, OfPiecesIsTheHashOfTheWhole) {
  std::string text(5000, 'x');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7);
  for (const std::size_t piece : {1u, 3u, 64u, 255u, 256u, 1024u, 5000u}) {
    Hasher64 hasher(17);
    for (std::size_t at = 0; at < text.size(); at += piece) {
      hasher.add(text.data() + at, std::min(piece, text.size() - at));
    }
    EXPECT_EQ(hasher.value(), hash64(text, 17)) << "in pieces of " << piece;
  }
  EXPECT_EQ(Hasher64().value(), hash64(""));
}

}  // namespace
}  // namespace lockstep::hash_test
