// SPDX-License-Identifier: Apache-2.0
// Parameters without a gradient, and steps that can't be finished.
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/ddp/reducer.h"
#include "tests/unit/ddp/fake_group.h"

namespace lockstep::unused_test {
namespace {

using testing::FakeWorld;
using testing::text_of;
using Group = std::shared_ptr<ProcessGroup>;

const std::vector<ParameterSpec> kFour{
    {"a", DType::f32, {16}}, {"b", DType::f64, {8}}, {"c", DType::f32, {16}}, {"d", DType::f32, {3}}};
constexpr BucketOptions kOneEach{.cap_bytes = 0, .first_cap_bytes = 0};

void write(Reducer& reducer, int parameter, float value) {
  const ParameterSpec& spec = reducer.parameters()[static_cast<std::size_t>(parameter)];
  for (std::int64_t i = 0; i < spec.count(); ++i) {
    if (spec.dtype == DType::f64) {
      reducer.gradient<double>(parameter)[i] = value;
    } else {
      reducer.gradient<float>(parameter)[i] = value;
    }
  }
  reducer.mark_ready(parameter);
}

std::vector<bool> used(const Reducer& reducer) {
  std::vector<bool> result;
  for (int p = 0; p < static_cast<int>(reducer.parameters().size()); ++p) result.push_back(reducer.used_anywhere(p));
  return result;
}

TEST(ReducerUnused, EarlierMicroBatchesCountAndRanksWithoutDataDoNot) {
  FakeWorld world(2);
  world.run([](const Group& group) {
    Reducer reducer(kFour, group, {.track_unused = true});
    reducer.plan_order(std::vector<int>{3, 2, 1, 0});
    reducer.begin_step({.weight = 1, .synchronize = false});
    if (group->rank() == 0) write(reducer, 2, 3.0f);
    reducer.finish_step();
    reducer.begin_step({.weight = group->rank() == 0 ? 2 : 0});
    if (group->rank() == 0) write(reducer, 0, 8.0f);
    EXPECT_EQ(reducer.finish_step(), 4);
    EXPECT_EQ(used(reducer), (std::vector<bool>{true, false, true, false}));
    EXPECT_EQ(reducer.gradient<float>(2)[0], 0.75f);
    EXPECT_EQ(reducer.gradient<float>(0)[0], 2.0f);
    // Nobody has data: gradients are 0, and what was used is known all the same.
    reducer.begin_step({.weight = 0});
    write(reducer, 1, 5.0f);
    EXPECT_EQ(reducer.finish_step(), 0);
    EXPECT_EQ(used(reducer), (std::vector<bool>{false, true, false, false}));
    EXPECT_EQ(reducer.gradient<double>(1)[0], 0.0);
  });
}

TEST(ReducerUnused, WhatIsDeclaredHoldsUpNoBucket) {
  FakeWorld world(2);
  world.run([&](const Group& group) {
    Reducer reducer(kFour, group, {.buckets = kOneEach, .track_unused = true});
    reducer.plan_order(std::vector<int>{3, 2, 1, 0});
    for (int step = 0; step < 2; ++step) {
      std::fill_n(reducer.gradient<float>(3), 3, 9.0f);  // stale
      reducer.begin_step({.weight = 1});
      const std::size_t before = world.started(group->rank()).size();
      reducer.mark_unused(3);
      write(reducer, 2, 1.0f);
      EXPECT_EQ(world.started(group->rank()).size(), before + 2) << "both buckets are on their way";
      EXPECT_THROW(reducer.mark_ready(3), InvalidArgument);
      write(reducer, 1, 1.0f);
      write(reducer, 0, 1.0f);
      reducer.finish_step();
      EXPECT_FALSE(reducer.used_anywhere(3));
      EXPECT_EQ(reducer.gradient<float>(3)[0], 0.0f);
    }
  });
}

TEST(ReducerUnused, NothingIsKnownUnlessItIsTracked) {
  FakeWorld world(1);
  Reducer reducer(kFour, world.group(0));
  EXPECT_THROW(reducer.used_anywhere(0), InvalidArgument);
}

TEST(ReducerUnused, RanksThatDisagreeAboutTrackingAreTold) {
  FakeWorld world(2);
  const auto errors = world.run_catching(
      [](const Group& group) { const Reducer reducer(kFour, group, {.track_unused = group->rank() == 0}); });
  for (const auto& error : errors) {
    EXPECT_NE(text_of(error).find("which parameters are used"), std::string::npos) << text_of(error);
  }
}

TEST(ReducerAbandon, EveryRankGetsTheCause) {
  FakeWorld world(2, std::chrono::minutes(10));
  const auto errors = world.run_catching([](const Group& group) {
    Reducer reducer(kFour, group);
    reducer.begin_step({.weight = 1});
    if (group->rank() == 1) {
      reducer.abandon_step("backward threw");
      reducer.begin_step();
    }
    reducer.finish_step();
  });
  for (const auto& error : errors) {
    EXPECT_NE(text_of(error).find("rank 1 (host fake, pid 101) failed in step 0: backward threw"), std::string::npos)
        << text_of(error);
    EXPECT_TRUE(text_of(error).starts_with("PeerLost: ")) << text_of(error);
  }
}

TEST(ReducerAbandon, AWorldOfOneGoesOnWithoutWhatItHadAccumulated) {
  FakeWorld world(1);
  Reducer reducer(kFour, world.group(0), {.buckets = kOneEach, .track_unused = true});
  reducer.abandon_step("nothing was begun");
  reducer.begin_step({.weight = 4, .synchronize = false});
  write(reducer, 0, 100.0f);
  reducer.finish_step();
  reducer.begin_step({.weight = 4});
  write(reducer, 2, 100.0f);
  reducer.abandon_step("backward threw");
  reducer.begin_step({.weight = 2});
  EXPECT_FALSE(reducer.accumulating());
  write(reducer, 1, 6.0f);
  EXPECT_EQ(reducer.finish_step(), 2);
  EXPECT_EQ(reducer.gradient<double>(1)[0], 3.0);
  EXPECT_EQ(reducer.gradient<float>(0)[0], 0.0f);
  EXPECT_EQ(used(reducer), (std::vector<bool>{false, true, false, false}));
}

TEST(ReducerAbandon, WhatWasSeenOfTheOrderIsForgotten) {
  FakeWorld world(1);
  Reducer reducer(kFour, world.group(0), {.buckets = kOneEach});
  reducer.begin_step({.weight = 1});
  write(reducer, 3, 1.0f);
  write(reducer, 2, 1.0f);
  reducer.abandon_step("backward threw");
  for (int step = 0; step < 2; ++step) {
    reducer.begin_step({.weight = 2});
    for (const int parameter : {3, 2, 1, 0}) write(reducer, parameter, 6.0f);
    EXPECT_EQ(reducer.finish_step(), 2);
    EXPECT_EQ(reducer.gradient<double>(1)[0], 3.0);
  }
}

TEST(ReducerMemory, OutlivesTheReducer) {
  FakeWorld world(1);
  std::shared_ptr<void> memory;
  float* gradient = nullptr;
  {
    Reducer reducer(kFour, world.group(0));
    memory = reducer.memory();
    gradient = reducer.gradient<float>(0);
    gradient[3] = 4.0f;
  }
  EXPECT_EQ(gradient[3], 4.0f);
}

}  // namespace
}  // namespace lockstep::unused_test
