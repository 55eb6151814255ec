// SPDX-License-Identifier: Apache-2.0
// Mistakes, ranks that differ, parameters without a gradient, and steps that can't be finished. What a step computes is
// tested on every backend, in tests/multirank/reducer.
#include "lockstep/ddp/reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/comm/group_internals.h"
#include "tests/support/error_of.h"
#include "tests/support/thrown_on.h"

namespace lockstep::reducer_test {
namespace {

using testing::error_of, testing::expect_text, testing::run_ranks, testing::text_of, testing::thrown_on;
using Group = std::shared_ptr<ProcessGroup>;

const std::vector<ParameterSpec> kFour{
    {"a", DType::f32, {16}}, {"b", DType::f64, {2, 4}}, {"c", DType::f32, {16}}, {"d", DType::f32, {3}}};
const std::vector<int> kBackward{3, 2, 1, 0};
constexpr BucketOptions kOneEach{.cap_bytes = 0, .first_cap_bytes = 0};

void write(Reducer& reducer, int parameter, float value) {
  const ParameterSpec& spec = reducer.parameters()[static_cast<std::size_t>(parameter)];
  if (spec.dtype == DType::f64) {
    std::fill_n(reducer.gradient<double>(parameter), spec.count(), value);
  } else {
    std::fill_n(reducer.gradient<float>(parameter), spec.count(), value);
  }
  reducer.mark_ready(parameter);
}

std::string used(Reducer& reducer) {
  std::string text;
  for (int p = 0; p < 4; ++p) text += reducer.used_anywhere(p) ? 'x' : '-';
  return text;
}

void expect_says(const std::function<void()>& call, std::initializer_list<std::string_view> words) {
  expect_text(error_of(call), words);
}

TEST(Reducer, NamesParameterAndStepOfAMistakeAndGoesOn) {
  run_ranks(1, [](const Group& group) {
    expect_says([&] { Reducer({}, group); }, {"0 parameters"});
    expect_says([&] { Reducer(kFour, nullptr); }, {"process group is null"});
    for (const int companions : {-1, 5}) {
      expect_says([&] { Reducer(kFour, group, {.companions = companions}); },
                  {"companions is " + std::to_string(companions) + ", but there are 4 specs"});
    }
    Reducer reducer(kFour, group);
    expect_says([&] { reducer.mark_ready("a"); }, {"mark_ready was called outside a step", "begin_step"});
    expect_says([&] { reducer.finish_step(); }, {"finish_step was called outside a step"});
    expect_says([&] { reducer.begin_step({.weight = -3}); }, {"step 0", "weight -3", "at least 0"});
    expect_says([&] { reducer.plan_order(std::vector<int>{0, 1, 2, 2}); }, {"2 again at position 3"});
    for (int step = 0; step < 2; ++step) {
      const std::string here = "step " + std::to_string(step);
      reducer.begin_step({.weight = 1});
      expect_says([&] { reducer.begin_step(); }, {"begin_step", here, "not finished"});
      write(reducer, 3, 6.0f);
      expect_says([&] { reducer.mark_ready("d"); }, {"'d' float32 [3]", "second time", here});
      expect_says([&] { reducer.total_weight(); }, {"within " + here, "finish_step"});
      EXPECT_THROW(reducer.used_anywhere(0), InvalidArgument);
      expect_says([&] { reducer.mark_ready("g"); }, {"'g'", here, "'a' to 'd'"});
      expect_says([&] { reducer.gradient<float>("g"); }, {"'g'", here});
      expect_says([&] { reducer.gradient<float>("b"); }, {"'b' float64 [2, 4]", "float32", here});
      expect_says([&] { reducer.mark_ready(4); }, {"index 4", here, "has 4 parameters"});
      expect_says([&] { reducer.gradient<float>(-1); }, {"index -1", here});
      EXPECT_EQ(reducer.finish_step(), 1);
      EXPECT_EQ(reducer.gradient<float>("d")[2], 6.0f);
    }
    expect_says([&] { reducer.plan_order(kBackward); }, {"plan_order", "before the first"});
    reducer.begin_step({.weight = INT64_MAX, .synchronize = false});
    reducer.finish_step();
    expect_says([&] { reducer.begin_step({.weight = 1}); }, {"weight 1", "9223372036854775807"});
  });
}

TEST(Reducer, RanksThatDifferAreToldWhere) {
  struct Case {
    const char* text;
    std::function<void(int rank, std::vector<ParameterSpec>& specs, ReducerOptions& options)> change;
  };
  const Case cases[] = {
      {"First difference, parameter 2: ranks 0 and 2 have 'c' float32 [16]; rank 1 has 'c' float32 [4, 4]. ",
       [](int rank, auto& specs, auto&) {
         if (rank != 1) return;
         specs[2].shape = {4, 4};
         specs[3].name = "later";
       }},
      {"parameter 3: rank 0 has 'd' float32 [3]; ranks 1 and 2 have only 3 parameters",
       [](int rank, auto& specs, auto&) {
         if (rank > 0) specs.pop_back();
       }},
      {"the bucket options: rank 0 has cap_bytes 1000, first_cap_bytes 1048576; rank 1 has cap_bytes 1001",
       [](int rank, auto&, auto& options) { options.buckets.cap_bytes = 1000 + static_cast<std::size_t>(rank); }},
      {"the loss: ranks 0 and 1 have Loss::mean; rank 2 has Loss::sum",
       [](int rank, auto&, auto& options) { options.loss = rank == 2 ? Loss::sum : Loss::mean; }},
      {"the communication hook: rank 0 has none; rank 1 has 'noop'; rank 2 has 'bf16_compress'",
       [](int rank, auto&, auto& options) {
         if (rank > 0) options.comm_hook = rank == 1 ? noop_hook() : bf16_compress_hook();
       }},
      {"Shard::optimizer",
       [](int rank, auto&, auto& options) { options.shard = rank == 0 ? Shard::optimizer : Shard::none; }},
      {"the companions: rank 0 has 1; ranks 1 and 2 have 0",
       [](int rank, auto&, auto& options) { options.companions = rank == 0 ? 1 : 0; }},
      {"which parameters are used", [](int rank, auto&, auto& options) { options.track_unused = rank == 0; }}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    const auto thrown = thrown_on(3, [&](const Group& group) {
      auto specs = kFour;
      ReducerOptions options;
      c.change(group->rank(), specs, options);
      Reducer(specs, group, options);
    });
    for (const auto& error : thrown) {
      EXPECT_EQ(text_of(error), text_of(thrown[0]));
      expect_text(text_of(error), {"Mismatch: Reducer: ", c.text});
    }
  }
}

TEST(Reducer, ARankThatMakesNoneEndsTheOthersWait) {
  const auto thrown = thrown_on(3, [](const Group& group) {
    if (group->rank() == 0) Reducer(kFour, group);
  });
  expect_text(text_of(thrown[0]), {"PeerLost: ", "Reducer() is collective: call it on every rank"});
}

TEST(Reducer, AFailedGroupGoesBeforeMisuse) {
  run_ranks(1, [](const Group& group) {
    Reducer begun(kFour, group), other(kFour, group);
    begun.begin_step();
    group->abort("rank 7 died");
    EXPECT_THROW(begun.begin_step(), PeerLost);
    EXPECT_THROW(begun.finish_step(), PeerLost);
    EXPECT_THROW(other.begin_step({.synchronize = false}), PeerLost) << "though it communicates nothing";
  });
}

TEST(ReducerUnused, EarlierMicroBatchesCountAndRanksWithoutDataDoNot) {
  run_ranks(2, [](const Group& group) {
    Reducer reducer(kFour, group, {.track_unused = true});
    reducer.plan_order(kBackward);
    reducer.begin_step({.weight = 1, .synchronize = false});
    if (group->rank() == 0) write(reducer, 2, 3.0f);
    reducer.finish_step();
    reducer.begin_step({.weight = group->rank() == 0 ? 2 : 0});
    if (group->rank() == 0) write(reducer, 0, 8.0f);
    EXPECT_EQ(reducer.finish_step(), 4);
    EXPECT_EQ(used(reducer), "x-x-");
    EXPECT_EQ(reducer.gradient<float>(2)[0], 0.75f);
    EXPECT_EQ(reducer.gradient<float>(0)[0], 2.0f);
    // Nobody has data: gradients are 0, and what was used is known all the same.
    reducer.begin_step({.weight = 0});
    write(reducer, 1, 5.0f);
    EXPECT_EQ(reducer.finish_step(), 0);
    EXPECT_EQ(used(reducer), "-x--");
    EXPECT_EQ(reducer.gradient<double>(1)[0], 0.0);
  });
}

TEST(ReducerUnused, WhatIsDeclaredHoldsUpNoBucket) {
  run_ranks(2, [&](const Group& group) {
    Reducer reducer(kFour, group, {.buckets = kOneEach, .track_unused = true});
    reducer.plan_order(kBackward);
    for (int step = 0; step < 2; ++step) {
      std::fill_n(reducer.gradient<float>(3), 3, 9.0f);  // stale
      reducer.begin_step({.weight = 1});
      const std::int64_t before = group->internals().last_sequence();
      reducer.mark_unused(3);
      write(reducer, 2, 1.0f);
      EXPECT_EQ(group->internals().last_sequence(), before + 2) << "both buckets are on their way";
      EXPECT_THROW(reducer.mark_ready(3), InvalidArgument);
      write(reducer, 1, 1.0f);
      write(reducer, 0, 1.0f);
      reducer.finish_step();
      EXPECT_EQ(used(reducer), "xxx-");
      EXPECT_EQ(reducer.gradient<float>(3)[0], 0.0f);
    }
  });
}

TEST(ReducerAbandon, EveryRankGetsTheCause) {
  const auto thrown = thrown_on(2, [](const Group& group) {
    Reducer reducer(kFour, group);
    reducer.begin_step({.weight = 1});
    if (group->rank() == 1) {
      reducer.abandon_step("backward threw");
      reducer.begin_step();
    }
    reducer.finish_step();
  });
  for (const auto& error : thrown) {
    testing::expect_thrown<PeerLost>(
        error, {.kind = Cause::Kind::aborted, .rank = 1, .text = ") failed in step 0: backward threw"});
  }
}

TEST(ReducerAbandon, AWorldOfOneGoesOnWithoutWhatItHadAccumulatedAndSeen) {
  run_ranks(1, [](const Group& group) {
    Reducer reducer(kFour, group, {.buckets = kOneEach, .track_unused = true});
    reducer.abandon_step("nothing was begun");
    reducer.begin_step({.weight = 4, .synchronize = false});
    write(reducer, 0, 100.0f);
    reducer.finish_step();
    reducer.begin_step({.weight = 4});
    write(reducer, 3, 100.0f);
    write(reducer, 2, 100.0f);
    reducer.abandon_step("backward threw");
    reducer.begin_step({.weight = 2});
    EXPECT_FALSE(reducer.accumulating());
    write(reducer, 1, 6.0f);
    EXPECT_EQ(reducer.finish_step(), 2);
    EXPECT_EQ(reducer.gradient<double>(1)[0], 3.0);
    EXPECT_EQ(reducer.gradient<float>(0)[0], 0.0f);
    EXPECT_EQ(used(reducer), "-x--");
    reducer.begin_step({.weight = 2});  // in an order that is made of one whole step
    for (const int parameter : kBackward) write(reducer, parameter, 6.0f);
    EXPECT_EQ(reducer.finish_step(), 2);
    EXPECT_EQ(reducer.gradient<float>(3)[0], 3.0f);
  });
}

TEST(ReducerMemory, OutlivesTheReducer) {
  run_ranks(1, [](const Group& group) {
    auto reducer = std::make_unique<Reducer>(kFour, group);
    const std::shared_ptr<void> memory = reducer->memory();
    float* const gradient = reducer->gradient<float>(0);
    gradient[3] = 4.0f;
    reducer.reset();
    EXPECT_EQ(gradient[3], 4.0f);
  });
}

}  // namespace
}  // namespace lockstep::reducer_test
