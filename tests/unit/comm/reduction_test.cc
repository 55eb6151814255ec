// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/reduction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/device/dtype.h"
#include "tests/conformance/expected.h"

namespace lockstep::comm::reduction_test {
namespace {

using lockstep::testing::from_number;

template <typename T>
std::vector<const std::byte*> pointers(const std::vector<std::vector<T>>& sources) {
  std::vector<const std::byte*> result;
  for (const auto& source : sources) result.push_back(reinterpret_cast<const std::byte*>(source.data()));
  return result;
}

template <typename T>
std::vector<T> reduced(const std::vector<std::vector<T>>& sources, Reduction reduction) {
  reduction.dtype = dtype_of<T>();
  std::vector<T> out(sources[0].size());
  reduce(reduction, pointers(sources), reinterpret_cast<std::byte*>(out.data()), out.size());
  return out;
}

// The tree as the header says it, one element at a time.
float tree_sum(const std::vector<std::vector<float>>& sources, std::size_t first, std::size_t ranks, std::size_t i) {
  if (ranks == 1) return sources[first][i];
  const std::size_t left = std::bit_ceil(ranks) / 2;
  return tree_sum(sources, first, left, i) + tree_sum(sources, first + left, ranks - left, i);
}

TEST(Reduction, SumsInOneTreeWhateverTheLength) {
  Generator random(1);
  for (const std::size_t ranks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 256, 257, 1025, 5000}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{15}, std::size_t{1024}, std::size_t{3001}}) {
      if (ranks > 17 && count > 15) continue;
      std::vector<std::vector<float>> sources(ranks, std::vector<float>(count));
      for (auto& source : sources) {
        for (float& x : source) x = random.normal() * std::pow(10.0f, static_cast<float>(random.below(8)));
      }
      const auto got = reduced(sources, {});
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(got[i], tree_sum(sources, 0, ranks, i)) << ranks << " ranks, element " << i;
      }
      // In place of any source, and a part of it alone, gives the same bits.
      for (const std::size_t place : {std::size_t{0}, ranks - 1}) {
        auto copy = sources;
        const auto from = count / 3;
        auto where = pointers(copy);
        for (auto& pointer : where) pointer += from * sizeof(float);
        reduce({}, where, reinterpret_cast<std::byte*>(copy[place].data() + from), count - from);
        ASSERT_EQ(std::memcmp(copy[place].data() + from, got.data() + from, (count - from) * sizeof(float)), 0);
      }
    }
  }
}

TEST(Reduction, SixteenBitFloatsAreRoundedOnce) {
  // 1 + 2^-8 three times over: rounded after each sum it would stay 1.
  std::vector<std::vector<bfloat16>> sources(4, std::vector<bfloat16>(40, to_bfloat16(0.00390625f)));
  for (auto& x : sources[0]) x = to_bfloat16(1);
  for (const bfloat16 x : reduced(sources, {})) EXPECT_EQ(x.bits, to_bfloat16(1.01171875f).bits);
  // The sum overflows float16, the mean does not.
  std::vector<std::vector<float16>> large(4, std::vector<float16>(40, to_float16(60000)));
  for (const float16 x : reduced(large, {.op = ReduceOp::avg, .divisor = 4}))
    EXPECT_EQ(to_float(x), 60000.0f - 32.0f + 32.0f);
}

TEST(Reduction, DividesOnceAndExactlyAfterItWasScaled) {
  const std::vector<std::vector<float>> sources = {{1, 2, -7}, {1, 3, 0}, {1, 5, 0}};  // their sum: 3, 10, -7
  struct Case {
    std::int64_t divisor, unit, scale;
    std::vector<float> wanted;
  };
  const Case cases[] = {{3, 1, 1, {1, 10.0f / 3, -7.0f / 3}},
                        {8, 1, 1, {0.375f, 1.25f, -0.875f}},
                        {0, 1, 1, {3, 10, -7}},
                        {24, 8, 1, {1, 10.0f / 3, -7.0f / 3}},
                        {3, 6, 1, {6, 20, -14}},
                        {6, 9, 1, {4.5f, 15, -10.5f}},
                        {0, 9, 1, {3, 10, -7}},
                        {5, 1, 4, {12.0f / 5, 40.0f / 5, -28.0f / 5}},
                        {0, 1, 4, {12, 40, -28}},
                        {2, 1, 8, {12, 40, -28}}};
  for (const Case& one : cases) {
    EXPECT_EQ(reduced(sources, {.divisor = one.divisor, .unit = one.unit, .scale = one.scale}), one.wanted)
        << one.divisor << " / " << one.unit << " of " << one.scale;
  }
  EXPECT_EQ(reduced(sources, {.op = ReduceOp::avg, .divisor = 3}), cases[0].wanted);
  const std::vector<std::vector<std::int32_t>> integers = {{7, -7, INT32_MAX}, {0, 0, INT32_MAX}};
  EXPECT_EQ(reduced(integers, {.op = ReduceOp::avg, .divisor = 2}), (std::vector<std::int32_t>{3, -3, INT32_MAX}));
  const std::vector<std::vector<std::uint8_t>> bytes = {{250, 1}, {252, 2}};
  EXPECT_EQ(reduced(bytes, {.op = ReduceOp::avg, .divisor = 2}), (std::vector<std::uint8_t>{251, 1}));
  // What a float16 can't hold in between is fine.
  const std::vector<std::vector<float16>> halves{{to_float16(30000.0f)}, {to_float16(3.0f)}};
  for (const auto& [divisor, unit] : {std::pair<std::int64_t, std::int64_t>{1000, 1}, {1 << 20, 7}, {4096, 1}}) {
    const float factor = 1024 / (static_cast<float>(divisor) / static_cast<float>(unit));
    const auto seen = reduced(halves, {.divisor = divisor, .unit = unit, .scale = 1024});
    EXPECT_NEAR(to_float(seen[0]), 30003.0f * factor, 1e-3f * 30003 * factor) << divisor << " / " << unit;
  }
}

TEST(Reduction, IntegersWrap) {
  EXPECT_EQ(reduced<std::int32_t>({{INT32_MAX}, {1}}, {}), std::vector<std::int32_t>{INT32_MIN});
  EXPECT_EQ(reduced<std::int64_t>({{INT64_MAX}, {1}}, {}), std::vector<std::int64_t>{INT64_MIN});
  EXPECT_EQ(reduced<std::int64_t>({{INT64_MAX}, {2}}, {.op = ReduceOp::product}), std::vector<std::int64_t>{-2});
  EXPECT_EQ(reduced<std::uint8_t>({{200}, {100}}, {}), std::vector<std::uint8_t>{44});
  EXPECT_EQ(reduced<std::uint8_t>({{20}, {20}, {3}}, {.op = ReduceOp::product}), std::vector<std::uint8_t>{176});
}

TEST(Reduction, MinAndMaxOfEverythingAndANanOnAnyRankIsSeen) {
  const std::vector<std::vector<double>> sources = {{1, -5, INFINITY}, {0, 5, -INFINITY}, {2, 7, 0}};
  EXPECT_EQ(reduced(sources, {.op = ReduceOp::min}), (std::vector<double>{0, -5, -INFINITY}));
  EXPECT_EQ(reduced(sources, {.op = ReduceOp::max}), (std::vector<double>{2, 7, INFINITY}));
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
    for (std::size_t rank = 0; rank < 3; ++rank) {
      std::vector<std::vector<float>> with_nan(3, std::vector<float>(20, 1));
      with_nan[rank][7] = NAN;
      const auto got = reduced(with_nan, {.op = op});
      for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i == 7) << name_of(op) << rank;
    }
  }
}

// Two ranks that both get the result take another way through the code: the same bits.
TEST(Reduction, SeveralDestinationsGetTheSameBits) {
  Generator random(2);
  for (std::size_t ranks = 1; ranks <= 5; ++ranks) {
    for (const auto& [divisor, unit] : {std::pair{1, 1}, {4, 1}, {7, 1}, {14, 2}, {7, 3}}) {
      std::vector<std::vector<float>> sources(ranks, std::vector<float>(2500));
      for (auto& source : sources) {
        for (float& x : source) x = random.normal();
      }
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
        const Reduction reduction{DType::f32, op, divisor, unit};
        const auto wanted = reduced(sources, reduction);
        auto in_place = sources;
        std::vector<std::byte*> destinations;
        for (auto& source : in_place) destinations.push_back(reinterpret_cast<std::byte*>(source.data()));
        reduce(reduction, pointers(in_place), destinations, wanted.size());
        for (const auto& got : in_place)
          EXPECT_EQ(got, wanted) << ranks << " ranks, divisor " << divisor << " / " << unit;
      }
    }
  }
}

// The first half over `each` ranks at a time, the second over what they give.
template <typename T>
std::vector<T> reduced_in_halves(const std::vector<std::vector<T>>& sources, std::size_t each, Reduction reduction) {
  reduction.dtype = dtype_of<T>();
  const std::size_t count = sources[0].size();
  const std::vector<const std::byte*> all = pointers(sources);
  std::vector<std::vector<std::byte>> partials;
  std::vector<const std::byte*> of_hosts;
  for (std::size_t first = 0; first < all.size(); first += each) {
    const auto of_host = std::span(all).subspan(first, std::min(each, all.size() - first));
    partials.emplace_back(count * size_of(dtype_of_partials(reduction)));
    reduce_to_partial(reduction, of_host, partials.back().data(), count);
  }
  for (const auto& partial : partials) of_hosts.push_back(partial.data());
  std::vector<T> out(count);
  std::byte* const destination = reinterpret_cast<std::byte*>(out.data());
  reduce_partials(reduction, of_hosts, std::span(&destination, 1), count);
  return out;
}

template <typename T>
void expect_bits_of_the_whole(ReduceOp op, std::int64_t divisor, Generator& random) {
  for (const std::size_t each : {1, 2, 4}) {
    for (const std::size_t hosts : {1, 2, 3, 5}) {
      std::vector<std::vector<T>> sources(each * hosts, std::vector<T>(1500));
      for (auto& source : sources) {
        for (T& x : source) {
          if constexpr (std::is_integral_v<T>) {
            x = static_cast<T>(random.below(std::uint64_t{1} << (8 * sizeof(T) - 1)));
          } else {
            x = from_number<T>(random.normal() * std::pow(10.0f, static_cast<float>(random.below(4))));
          }
        }
      }
      const auto whole = reduced(sources, {.op = op, .divisor = divisor});
      const auto in_halves = reduced_in_halves(sources, each, {.op = op, .divisor = divisor});
      EXPECT_EQ(std::memcmp(whole.data(), in_halves.data(), whole.size() * sizeof(T)), 0)
          << name_of(dtype_of<T>()) << " " << name_of(op) << " over " << divisor << ", " << hosts << " x " << each;
    }
  }
}

// Sums of 16 bits and of integers that are divided would not.
TEST(Reduction, HalvesOfEqualPowersOfTwoHaveTheBitsOfTheWhole) {
  Generator random(3);
  for (const auto& [op, divisor] : {std::pair{ReduceOp::sum, 1},
                                    {ReduceOp::avg, 7},
                                    {ReduceOp::min, 1},
                                    {ReduceOp::max, 1},
                                    {ReduceOp::product, 1},
                                    {ReduceOp::sum, 0}}) {
    expect_bits_of_the_whole<float>(op, divisor, random);
    expect_bits_of_the_whole<double>(op, divisor, random);
    expect_bits_of_the_whole<bfloat16>(op, divisor, random);
    expect_bits_of_the_whole<float16>(op, divisor, random);
    expect_bits_of_the_whole<std::int32_t>(op, divisor, random);
    expect_bits_of_the_whole<std::int64_t>(op, divisor, random);
    expect_bits_of_the_whole<std::uint8_t>(op, divisor, random);
  }
}

TEST(Reduction, PartialsAreNoWiderThanTheirSumsNeed) {
  struct Case {
    DType dtype;
    ReduceOp op;
    std::int64_t divisor;
    DType wanted;
  };
  for (const Case& one : {Case{DType::f16, ReduceOp::sum, 1, DType::f32},
                          {DType::bf16, ReduceOp::avg, 4, DType::f32},
                          {DType::bf16, ReduceOp::product, 1, DType::f32},
                          {DType::f16, ReduceOp::max, 1, DType::f16},
                          {DType::bf16, ReduceOp::min, 1, DType::bf16},
                          {DType::i32, ReduceOp::sum, 1, DType::i32},
                          {DType::i32, ReduceOp::avg, 4, DType::i64},
                          {DType::u8, ReduceOp::avg, 4, DType::i32},
                          {DType::i64, ReduceOp::avg, 4, DType::i64},
                          {DType::f32, ReduceOp::avg, 4, DType::f32}}) {
    EXPECT_EQ(dtype_of_partials({.dtype = one.dtype, .op = one.op, .divisor = one.divisor}), one.wanted)
        << name_of(one.dtype) << ", " << name_of(one.op);
  }
}

TEST(Reduction, NothingIsWrittenForNoElements) {
  const std::vector<std::vector<float>> sources(3, std::vector<float>(1, 1));
  float untouched = 42;
  reduce({}, pointers(sources), reinterpret_cast<std::byte*>(&untouched), 0);
  EXPECT_EQ(untouched, 42);
}

}  // namespace
}  // namespace lockstep::comm::reduction_test
