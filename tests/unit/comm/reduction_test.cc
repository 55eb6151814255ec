// SPDX-License-Identifier: Apache-2.0
// What ranks' values and notes come to, and which share of them is whose.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/device/dtype.h"
#include "runtime/comm/inline_scalars.h"
#include "runtime/comm/reduction.h"
#include "runtime/comm/transfer.h"

namespace lockstep::comm::reduction_test {
namespace {

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

constexpr NoteField kFields[] = {{NoteOp::sum}, {NoteOp::any}, {NoteOp::equal}, {NoteOp::equal}};
constexpr int kSizes[] = {1, 2, 3, 4, 8};

// What each of the ranks is told, as both kinds of backend find it.
std::vector<InlineScalars> told(NoteOps ops, const std::vector<InlineScalars>& by_rank) {
  ScalarReduction scalars(ops);
  InlineScalars sums{};
  for (const InlineScalars& own : by_rank) {
    scalars.add(own);
    const InlineScalars summand = summands(ops, own);
    for (std::size_t i = 0; i < kInlineScalars; ++i) {
      sums[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(sums[i]) + static_cast<std::uint64_t>(summand[i]));
    }
  }
  std::vector<InlineScalars> result{scalars.words()};
  for (const InlineScalars& own : by_rank)
    result.push_back(from_sums(ops, own, sums, static_cast<int>(by_rank.size())));
  return result;
}

TEST(Note, OperationsAreTwoBitsEach) {
  const NoteOps ops(kFields);
  EXPECT_EQ(ops.fields(), 4u);
  EXPECT_EQ(ops.bits(), 0b11'11'10'01);
  EXPECT_EQ(ops[2], NoteOp::equal);
  EXPECT_EQ(describe(ops), "sum, any, equal, equal");
  EXPECT_EQ(NoteOps::of_bits(ops.bits()), ops);
  EXPECT_EQ(NoteOps::of_bits(0b11'00'01).fields(), 1u) << "behind a gap there is nothing";
  EXPECT_EQ(NoteOps::of_bits(0xffff).fields(), kMostNoteFields);
  EXPECT_EQ(NoteOps().fields(), 0u);
}

TEST(Note, IsCombinedAlikeOnEveryRankAndByEveryBackend) {
  const NoteOps ops(kFields);
  for (const int size : kSizes) {
    for (int odd_one = -1; odd_one < size; ++odd_one) {
      std::vector<InlineScalars> by_rank;
      for (int r = 0; r < size; ++r) {
        const bool is_odd = r == odd_one;
        by_rank.push_back({r + 1, 10 * r, is_odd ? -5 : 0, is_odd ? 7 : 6, std::numeric_limits<std::int64_t>::min()});
      }
      const std::int64_t below = size * (size - 1) / 2;
      const bool differs = odd_one >= 0 && size > 1;
      const InlineScalars wanted{below + size, 10 * below, odd_one >= 0, !differs, 1};
      for (const InlineScalars& words : told(ops, by_rank)) EXPECT_EQ(words, wanted) << size << " ranks, " << odd_one;
    }
  }
}

// By own value times ranks against the sum, the rank in the middle would think that all are equal, and alone.
TEST(Note, ARankWhoseValueIsTheMeanOfAllSeesThatTheyDiffer) {
  constexpr NoteField kOne[] = {{NoteOp::equal}};
  for (const std::vector<InlineScalars>& by_rank : {std::vector<InlineScalars>{{0, 1}, {0, 2}, {0, 3}},
                                                    std::vector<InlineScalars>{{0, -1}, {0, 0}, {0, 0}, {0, 1}}}) {
    for (const InlineScalars& words : told(NoteOps(kOne), by_rank)) EXPECT_EQ(words[1], 0);
  }
}

TEST(Note, SumsWrapAndWeightsDoNot) {
  constexpr NoteField kOne[] = {{NoteOp::sum}};
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  ScalarReduction scalars{NoteOps(kOne)};
  scalars.add({kMost, kMost, 9});
  EXPECT_FALSE(scalars.is_too_heavy());
  scalars.add({1, 1, 9});
  EXPECT_TRUE(scalars.is_too_heavy());
  EXPECT_EQ(scalars.words()[1], std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(scalars.words()[2], 0) << "of no field";
}

// What else there is, tests/conformance runs through windows of every size.
TEST(Transfer, SharesCoverAChunkOnceInWholeCacheLines) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::u8}) {
    for (const int size : {1, 2, 3, 8, 64}) {
      for (const std::size_t length :
           {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{1000}, std::size_t{65537}}) {
        CollectiveArgs args;
        args.record = {.kind = OpKind::all_reduce, .dtype = dtype, .count = 1 << 20};
        args.reduction.dtype = dtype;
        args.size = size;
        const Chunk chunk{640, length};
        std::size_t next = chunk.offset;
        for (int r = 0; r < size; ++r) {
          const Chunk range = range_of(args, chunk, r);
          EXPECT_EQ(range.offset, next);
          EXPECT_EQ((range.offset - chunk.offset) * args.element_bytes() % 64, 0u);
          next = range.offset + range.length;
        }
        EXPECT_EQ(next, chunk.offset + length);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::comm::reduction_test
