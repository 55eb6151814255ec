// SPDX-License-Identifier: Apache-2.0
// Numbers: hashes, message authentication codes, generators, sums of squares.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/random.h"
#include "runtime/base/exact_squares.h"
#include "runtime/base/hash.h"
#include "runtime/base/hmac.h"
#include "runtime/base/random_bytes.h"

namespace lockstep::random_test {
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

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

std::string mac_of(std::string_view key, const std::vector<std::string_view>& parts) {
  return hex(hmac_sha256(bytes_of(key), parts));
}

// RFC 4231, test cases 1, 2, 6 and 7.
TEST(Hmac, KnownAnswers) {
  EXPECT_EQ(mac_of(std::string(20, '\x0b'), {"Hi There"}),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(mac_of("Jefe", {"what do ya want for nothing?"}),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(mac_of(std::string(131, '\xaa'), {"Test Using Larger Than Block-Size Key - Hash Key First"}),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(
      mac_of(std::string(131, '\xaa'),
             {"This is a test using a larger than block-size key and a larger than block-size data. The key needs "
              "to be hashed before being used by the HMAC algorithm."}),
      "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(Hmac, PartsAreOneMessage) {
  EXPECT_EQ(mac_of("Jefe", {"what do ", "", "ya want ", "for nothing?"}),
            mac_of("Jefe", {"what do ya want for nothing?"}));
}

TEST(Hmac, ComparesWholeContentsAndWipesAll) {
  EXPECT_TRUE(equal_in_constant_time(bytes_of("abcd"), bytes_of("abcd")));
  EXPECT_TRUE(equal_in_constant_time({}, {}));
  EXPECT_FALSE(equal_in_constant_time(bytes_of("abcd"), bytes_of("abce")));
  EXPECT_FALSE(equal_in_constant_time(bytes_of("abcd"), bytes_of("xbcd")));
  EXPECT_FALSE(equal_in_constant_time(bytes_of("abcd"), bytes_of("abc")));
  std::string text = "secret";
  wipe(std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(text, std::string(6, '\0'));
}

TEST(RandomBytes, AreDrawnEachTime) {
  fill_random({});
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

// tests/kat_vectors of Random123 (D. E. Shaw Research), the lines "philox4x32 10".
TEST(Philox, KnownAnswers) {
  using Block = std::array<std::uint32_t, 4>;
  constexpr std::uint32_t kOnes = 0xffffffffu;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Block{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
            (Block{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Uniform01, StaysBelowOne) {
  EXPECT_EQ(uniform01(0), 0.0f);
  EXPECT_LT(uniform01(0xffffffffu), 1.0f);
  EXPECT_EQ(uniform01(0x80000000u), 0.5f);
}

TEST(Generator, IsPhiloxCountedUp) {
  Generator generator(0x0000000200000001ull, 0x0000000400000003ull);
  for (std::uint32_t block = 0; block < 3; ++block) {
    for (const std::uint32_t expected : philox({block, 0, 3, 4}, {1, 2})) EXPECT_EQ(generator.next(), expected);
  }
}

TEST(Generator, BelowReachesEveryValueAndNoOther) {
  Generator generator(1);
  for (const std::uint64_t bound : {1, 2, 3, 7, 10}) {
    std::vector<int> seen(bound);
    for (int i = 0; i < 2000; ++i) {
      const std::uint64_t value = generator.below(bound);
      ASSERT_LT(value, bound);
      ++seen[value];
    }
    // Five standard deviations around the mean of a binomial; fixed seeds, so this can't fail by chance.
    const double mean = 2000.0 / static_cast<double>(bound);
    for (const int count : seen) EXPECT_NEAR(count, mean, 5 * std::sqrt(mean) + 1) << "bound " << bound;
  }
}

// With a bound of 3/4 of the range, a plain remainder would put half of the numbers into the lowest third.
TEST(Generator, BelowHasNoBiasForLargeBounds) {
  Generator generator(2);
  const std::uint64_t bound = 3ull << 62;
  int low = 0;
  for (int i = 0; i < 3000; ++i) low += generator.below(bound) < (1ull << 62);
  EXPECT_NEAR(low, 1000, 150);
}

TEST(Generator, NormalHasItsMoments) {
  Generator generator(3);
  constexpr int kCount = 100000;
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = generator.normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.02);
  EXPECT_NEAR(squares / kCount, 1, 0.03);
  EXPECT_NEAR(fourth / kCount, 3, 0.2);
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename Squares, typename T>
Squares squares_of(const std::vector<T>& values) {
  Squares squares;
  squares.add(values.data(), std::ssize(values));
  return squares;
}
ExactSquares of(const std::vector<float>& values) { return squares_of<ExactSquares>(values); }
ExactDoubleSquares of_doubles(const std::vector<double>& values) { return squares_of<ExactDoubleSquares>(values); }

template <typename Squares>
void add(Squares& sum, const Squares& part) {
  for (std::size_t i = 0; i < sum.words.size(); ++i) sum.words[i] += part.words[i];
}

TEST(ExactSquares, AreRoundedOnce) {
  EXPECT_EQ(of({}).sum(), 0);
  EXPECT_EQ(of({0, -0.0f}).sum(), 0);
  EXPECT_EQ(of({3, -4}).sum(), 25);
  // 2^-53 is half a unit in the last place of 1: rounded to even, and upwards with anything more.
  const float unit = std::ldexp(1.0f, -26), quarter = std::ldexp(1.0f, -27), least = std::ldexp(1.0f, -149);
  EXPECT_EQ(of({1, unit}).sum(), 1 + std::ldexp(1.0, -52));
  EXPECT_EQ(of({1, quarter, quarter}).sum(), 1);
  EXPECT_EQ(of({1, quarter, quarter, least}).sum(), 1 + std::ldexp(1.0, -52));
  EXPECT_EQ(of({quarter, 1, unit, quarter}).sum(), 1 + std::ldexp(1.0, -51));
}

TEST(ExactSquares, ReachFromTheLeastFloatToTheLargest) {
  const float least = std::numeric_limits<float>::denorm_min(), largest = std::numeric_limits<float>::max();
  EXPECT_EQ(of({least}).sum(), std::ldexp(1.0, -298));
  EXPECT_EQ(of({std::numeric_limits<float>::min(), least}).sum(), std::ldexp(1.0, -252) + std::ldexp(1.0, -298));
  const double square = static_cast<double>(largest) * static_cast<double>(largest);
  EXPECT_EQ(of({largest, least}).sum(), square);
  EXPECT_EQ(of(std::vector<float>(1 << 20, largest)).sum(), std::ldexp(square, 20));
}

// Of `count` values between 2^least and 2^most.
template <typename Squares, typename T>
void expect_same_bits(std::size_t count, int least, int most) {
  std::mt19937_64 random(1);
  std::normal_distribution<T> mantissa;
  std::uniform_int_distribution<int> exponent(least, most);
  std::vector<T> values(count);
  for (T& value : values) value = std::ldexp(mantissa(random), exponent(random));
  const double wanted = squares_of<Squares>(values).sum();
  long double near = 0;
  for (const T value : values) near += static_cast<long double>(value) * static_cast<long double>(value);
  EXPECT_NEAR(wanted / static_cast<double>(near), 1, 1e-14);
  for (int repetition = 0; repetition < 20; ++repetition) {
    std::shuffle(values.begin(), values.end(), random);
    Squares sum;
    for (std::size_t begin = 0; begin < count;) {
      const std::size_t size = std::min<std::size_t>(count - begin, 1 + random() % count);
      const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
      add(sum, squares_of<Squares>(std::vector<T>(first, first + static_cast<std::ptrdiff_t>(size))));
      begin += size;
    }
    ASSERT_EQ(sum.sum(), wanted) << count;
  }
}

TEST(ExactSquares, HaveTheSameBitsInAnyOrderAndHoweverTheyAreCut) {
  for (const std::size_t count : {1u, 17u, 100000u}) {
    expect_same_bits<ExactSquares, float>(count, -7, -7);
    expect_same_bits<ExactDoubleSquares, double>(count, -7, -7);
  }
  expect_same_bits<ExactSquares, float>(1000, -140, 120);
  expect_same_bits<ExactDoubleSquares, double>(17, -500, 500);
}

TEST(ExactSquares, WhatIsNotFiniteShowsInTheSumOfTheParts) {
  const float infinity = std::numeric_limits<float>::infinity();
  ExactSquares sum = of({1, -infinity, 2});
  EXPECT_EQ(sum.sum(), kInfinity);
  add(sum, of({infinity, 3}));
  add(sum, of({1}));
  EXPECT_EQ(sum.sum(), kInfinity);
  add(sum, of({5, kNan}));
  EXPECT_TRUE(std::isnan(sum.sum()));
  std::vector<float> many(100000, 1);
  many.back() = kNan;
  EXPECT_TRUE(std::isnan(of(many).sum()));
}

TEST(ExactDoubleSquares, ReachAsFarAsSquaresOfDoubles) {
  EXPECT_EQ(of_doubles({}).sum(), 0);
  EXPECT_EQ(of_doubles({3, -4, -0.0}).sum(), 25);
  EXPECT_EQ(of_doubles({1, std::ldexp(1.0, -27), std::ldexp(1.0, -27), std::ldexp(1.0, -537)}).sum(),
            1 + std::ldexp(1.0, -52));
  EXPECT_EQ(of_doubles({std::ldexp(1.0, -537)}).sum(), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(of_doubles(std::vector<double>(1 << 10, 1e150)).sum(), std::ldexp(1e150 * 1e150, 10));
  EXPECT_EQ(of_doubles(std::vector<double>(1 << 4, 1e154)).sum(), kInfinity) << "each square is finite";
  EXPECT_EQ(of_doubles({1, 1e155}).sum(), kInfinity);
  EXPECT_EQ(of_doubles({1, -kInfinity}).sum(), kInfinity);
  EXPECT_TRUE(std::isnan(of_doubles({1, kInfinity, std::numeric_limits<double>::quiet_NaN()}).sum()));
}

}  // namespace
}  // namespace lockstep::random_test
