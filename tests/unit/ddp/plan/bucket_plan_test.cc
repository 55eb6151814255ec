// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/bucket_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "tests/support/error_of.h"

namespace lockstep::bucket_plan_test {
namespace {

using lockstep::testing::error_of;

std::vector<int> in_order(std::size_t n) {
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Names p0, p1, ... with so many float32 each.
std::vector<ParameterSpec> floats(std::initializer_list<std::int64_t> counts) {
  std::vector<ParameterSpec> specs;
  for (const std::int64_t count : counts) specs.push_back({"p" + std::to_string(specs.size()), DType::f32, {count}});
  return specs;
}

std::vector<std::vector<int>> members(const BucketPlan& plan) {
  std::vector<std::vector<int>> result;
  for (const Bucket& bucket : plan.buckets) result.push_back(bucket.parameters);
  return result;
}

TEST(ParameterSpec, CountsElements) {
  EXPECT_EQ((ParameterSpec{"w", DType::f32, {784, 256}}.count()), 784 * 256);
  EXPECT_EQ((ParameterSpec{"scalar", DType::f64, {}}.count()), 1);
  EXPECT_EQ((ParameterSpec{"empty", DType::f32, {3, 0, 5}}.count()), 0);
  EXPECT_EQ((ParameterSpec{"half", DType::bf16, {3, 5}}.bytes()), 30u);
  EXPECT_EQ((ParameterSpec{"w", DType::f32, {784, 256}}.describe()), "'w' float32 [784, 256]");
}

TEST(ParameterSpec, RefusesShapesThatAreNone) {
  EXPECT_THROW((ParameterSpec{"w", DType::f32, {3, -1}}.count()), InvalidArgument);
  EXPECT_THROW((ParameterSpec{"w", DType::f32, {1ll << 40, 1ll << 40}}.count()), InvalidArgument);
  EXPECT_THROW((ParameterSpec{"w", DType::f64, {1ll << 61}}.count()), InvalidArgument);
}

TEST(BucketPlan, NothingIsNothing) {
  const BucketPlan plan = plan_buckets({}, {});
  EXPECT_TRUE(plan.buckets.empty());
  EXPECT_EQ(plan.arena_bytes, 0u);
}

TEST(BucketPlan, HasTheseBuckets) {
  const ParameterSpec f64{"f64", DType::f64, {8}}, more_f64{"more", DType::f64, {8}}, f16{"f16", DType::f16, {16}};
  const std::vector<ParameterSpec> four = floats({16, 16, 16, 16});  // of 64 bytes each
  struct Case {
    const char* name;
    std::vector<ParameterSpec> specs;
    BucketOptions options;
    std::vector<std::vector<int>> buckets;
  };
  const Case cases[] = {
      {"never splits a parameter",
       floats({16, 1'000'000, 16}),
       {.cap_bytes = 128, .first_cap_bytes = 128},
       {{0, 1}, {2}}},
      {"a cap of 0 gives each its own", floats({1, 1, 1}), {.cap_bytes = 0, .first_cap_bytes = 0}, {{0}, {1}, {2}}},
      // The first opens its bucket first, and closes it last.
      {"dtypes are apart, and what is full goes first",
       {f64, four[1], four[2], more_f64},
       {.cap_bytes = 1024, .first_cap_bytes = 128},
       {{1, 2}, {0, 3}}},
      // Alone of its kind: never reaches its cap.
      {"an open bucket that is ready earlier comes earlier",
       {f16, four[1], four[2]},
       {.cap_bytes = 1024, .first_cap_bytes = 128},
       {{0}, {1, 2}}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const BucketPlan plan = plan_buckets(c.specs, in_order(c.specs.size()), c.options);
    EXPECT_EQ(members(plan), c.buckets);
    for (const Bucket& bucket : plan.buckets) {
      EXPECT_EQ(bucket.dtype, c.specs[static_cast<std::size_t>(bucket.parameters[0])].dtype);
    }
  }
}

TEST(BucketPlan, ClosesAtTheCapAndFollowsTheOrder) {
  // 64 bytes each; the first bucket takes two of them, the others three.
  const auto specs = floats({16, 16, 16, 16, 16, 16, 16});
  const std::vector<int> order{6, 5, 4, 3, 2, 1, 0};
  const BucketPlan plan = plan_buckets(specs, order, {.cap_bytes = 192, .first_cap_bytes = 128});
  EXPECT_EQ(members(plan), (std::vector<std::vector<int>>{{6, 5}, {4, 3, 2}, {1, 0}}));
  EXPECT_EQ(plan.gradient_slots[6].offset, 0u);
  EXPECT_EQ(plan.gradient_slots[0].offset, 6u * 64);
  EXPECT_EQ(plan.gradient_slots[0].bucket, 2);
  EXPECT_EQ(plan.arena_bytes, 7u * 64);
  EXPECT_EQ(plan.buckets[1].count, 48);
}

TEST(BucketPlan, GivesEmptyAndScalarParametersALine) {
  const std::vector<ParameterSpec> specs{{"none", DType::f32, {0}}, {"scalar", DType::f32, {}}};
  const BucketPlan plan = plan_buckets(specs, in_order(2));
  EXPECT_EQ(plan.arena_bytes, 128u);
  EXPECT_EQ(plan.buckets[0].count, 32);
}

TEST(BucketPlan, RefusesBadInputByName) {
  const auto two = floats({1, 1});
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max() / 8;
  struct Case {
    const char* text;
    std::vector<ParameterSpec> specs;
    std::vector<int> order;
  };
  const Case cases[] = {{"order of 1 entries for 2 parameters", two, {0}},
                        {"holds 0 again at position 1", two, {0, 0}},
                        {"holds 2 at position 1", two, {0, 2}},
                        {"holds -1", two, {-1, 0}},
                        {"'w' of parameter 1 is also the name of an earlier parameter",
                         {{"w", DType::f32, {1}}, {"w", DType::f32, {1}}},
                         {0, 1}},
                        {"no name", {{"", DType::f32, {1}}}, {0}},
                        {"'steps' int32", {{"steps", DType::i32, {1}}}, {0}},
                        {"'steps' int64", {{"steps", DType::i64, {1}}}, {0}},
                        {"'steps' uint8", {{"steps", DType::u8, {1}}}, {0}},
                        {"'w' float32 [-4]", {{"w", DType::f32, {-4}}}, {0}},
                        {"'b' float64", {{"a", DType::f64, {huge}}, {"b", DType::f64, {huge}}}, {0, 1}}};
  for (const Case& c : cases) {
    lockstep::testing::expect_text(error_of([&] { plan_buckets(c.specs, c.order); }), {c.text});
  }
}

// What the header promises, for random specs, orders and caps.
void check_random_plan(std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Generator random(seed, 17);
  std::vector<ParameterSpec> specs;
  const auto size = 1 + random.below(40);
  for (std::size_t i = 0; i < size; ++i) {
    constexpr DType kinds[] = {DType::f32, DType::f64, DType::bf16, DType::f16};
    specs.push_back({"p" + std::to_string(i), kinds[random.below(4)], {static_cast<std::int64_t>(random.below(200))}});
  }
  std::vector<int> order = in_order(size);
  for (std::size_t i = size; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  const BucketOptions options{.cap_bytes = random.below(4096), .first_cap_bytes = random.below(2048)};
  const BucketPlan plan = plan_buckets(specs, order, options);

  std::vector<std::size_t> position(size);
  for (std::size_t i = 0; i < size; ++i) position[static_cast<std::size_t>(order[i])] = i;
  std::vector<int> seen(size, 0);
  std::size_t end = 0;
  std::size_t last_full = 0;
  std::vector<bool> first_of_dtype(8, true);
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    ASSERT_FALSE(bucket.parameters.empty());
    EXPECT_EQ(bucket.offset, end);
    EXPECT_EQ(bucket.offset % kGradientAlignment, 0u);
    std::size_t before_last = 0;
    for (const int p : bucket.parameters) {
      const auto at = static_cast<std::size_t>(p);
      ++seen[at];
      EXPECT_EQ(plan.gradient_slots[at].bucket, static_cast<int>(b));
      EXPECT_EQ(plan.gradient_slots[at].offset, end);
      EXPECT_EQ(specs[at].dtype, bucket.dtype);
      before_last = end - bucket.offset;
      end += std::max<std::size_t>((specs[at].bytes() + 63) / 64, 1) * 64;
    }
    EXPECT_EQ(static_cast<std::size_t>(bucket.count) * size_of(bucket.dtype), end - bucket.offset);
    EXPECT_TRUE(std::is_sorted(bucket.parameters.begin(), bucket.parameters.end(), [&](int x, int y) {
      return position[static_cast<std::size_t>(x)] < position[static_cast<std::size_t>(y)];
    }));
    // It was under its cap until the last one came.
    const auto kind = static_cast<std::size_t>(bucket.dtype);
    const std::size_t cap = first_of_dtype[kind] ? options.first_cap_bytes : *options.cap_bytes;
    first_of_dtype[kind] = false;
    EXPECT_TRUE(bucket.parameters.size() == 1 || before_last < cap) << before_last << " against " << cap;
    const std::size_t full = position[static_cast<std::size_t>(bucket.parameters.back())];
    EXPECT_TRUE(b == 0 || full > last_full);
    last_full = full;
  }
  EXPECT_EQ(end, plan.arena_bytes);
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  // The arena's size does not depend on order or caps: a new plan fits in the old arena.
  EXPECT_EQ(plan_buckets(specs, in_order(size)).arena_bytes, plan.arena_bytes);
}

TEST(BucketPlan, KeepsItsPromisesForRandomInput) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) check_random_plan(seed);
}

}  // namespace
}  // namespace lockstep::bucket_plan_test
