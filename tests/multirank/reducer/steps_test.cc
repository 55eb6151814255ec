// SPDX-License-Identifier: Apache-2.0
// What a step computes, on every backend.
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/comm/stop.h"
#include "runtime/comm/group_internals.h"
#include "tests/multirank/reducer/suite.h"

namespace lockstep::testing::steps_test {
namespace {

TEST_P(ReducerSuite, TakesTheMeanOverUnevenShards) {
  run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    EXPECT_EQ(reducer.total_weight(), 0);
    // Rank 1 has no data.
    const auto weight_of = [](int rank) { return rank == 1 ? 0 : 2 * rank + 3; };
    std::int64_t total = 0;
    double sum = 0;
    for (int r = 0; r < group->size(); ++r) {
      total += weight_of(r);
      sum += weight_of(r) * (r + 1);
    }
    const int mine = weight_of(group->rank());
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(group->internals().step(), step - 1);
      reducer.begin_step({.weight = mine});
      EXPECT_EQ(group->internals().step(), step);
      if (mine > 0) backward(group, reducer, mine * (group->rank() + 1));
      finish(group, reducer, total);
      for (int p = 0; p < 6; ++p) {
        EXPECT_FLOAT_EQ(first(group, reducer, p), static_cast<float>((p + 1) * sum / static_cast<double>(total)));
      }
      EXPECT_EQ(reducer.total_weight(), total) << "asked again";
    }
  });
}

// On a device at the end of the step that has read the note: two steps later.
TEST_P(ReducerSuite, AgreesToStopAtTheEndOfOneStep) {
  run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    const int read_later = group->device().kind == DeviceKind::cpu ? 0 : 2;
    for (int step = 0; step < 8; ++step) {
      if (step == 3 && group->rank() == group->size() - 1) request_stop(*group, "enough");
      reducer.begin_step();
      backward(group, reducer, 1);
      EXPECT_EQ(should_stop(*group).has_value(), step > 3 + read_later) << "within step " << step;
      reducer.finish_step();
      EXPECT_EQ(should_stop(*group).has_value(), step >= 3 + read_later) << "behind step " << step;
    }
    EXPECT_EQ(should_stop(*group), "enough");
    EXPECT_EQ(exit_code(*group), 0);
  });
}

TEST_P(ReducerSuite, NobodyWithDataGivesZeroWhateverWasWritten) {
  run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    for (int step = 0; step < 2; ++step) {
      reducer.begin_step({.weight = 0});
      backward(group, reducer, std::nan(""));
      finish(group, reducer, 0);
      for (int p = 0; p < 6; ++p) EXPECT_EQ(first(group, reducer, p), 0.0f);
    }
  });
}

TEST_P(ReducerSuite, AnUnmarkedGradientCountsAsZeroInItsMicroBatchOnly) {
  run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    reducer.begin_step({.weight = 1});
    backward(group, reducer, 1000);  // stale in the next step
    reducer.finish_step();
    reducer.begin_step({.weight = 1, .synchronize = false});
    write_gradient(*group, reducer, 0, 1);  // a in the first micro-batch only
    reducer.mark_ready(0);
    reducer.finish_step();
    reducer.begin_step({.weight = 1});
    write_gradient(*group, reducer, 5, 10);  // f in the second only
    reducer.mark_ready(5);
    reducer.mark_unused(4);
    finish(group, reducer, 2 * group->size());
    EXPECT_FLOAT_EQ(first(group, reducer, 0), 0.5f);
    EXPECT_FLOAT_EQ(first(group, reducer, 5), 5.0f);
    for (int p = 1; p < 5; ++p) EXPECT_EQ(first(group, reducer, p), 0.0f) << p;

    reducer.begin_step({.weight = 1});
    reducer.finish_step();
    for (int p = 0; p < 6; ++p) EXPECT_EQ(first(group, reducer, p), 0.0f) << p;
  });
}

TEST_P(ReducerSuite, KeepsPaddingZero) {
  run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    for (int step = 0; step < 3; ++step) {
      reducer.begin_step({.weight = 3});
      backward(group, reducer, 7);
      reducer.finish_step();
      const auto e = gradient_of(*group, reducer, 4, 13);
      for (std::size_t i = 3; i < 16; ++i) EXPECT_EQ(e[i], 0.0f) << "step " << step;
    }
  });
}

TEST_P(ReducerSuite, ReducesEveryDtypeInBucketsOfItsOwn) {
  run([](const Group& group) {
    std::vector<ParameterSpec> specs;
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::f16, DType::bf16}) {
      specs.push_back({"p" + std::to_string(specs.size()), dtype, {33}});
    }
    Reducer reducer(specs, group);
    EXPECT_EQ(reducer.plan().buckets.size(), 4u);
    // Weights 1, 2, 3 ..., mean gradients 4, 8, 12 ..., whose sums are exact in 16 bits.
    double sum = 0, total = 0;
    for (int weight = 1; weight <= group->size(); ++weight) {
      sum += weight * weight * 4;
      total += weight;
    }
    const int weight = group->rank() + 1;
    const double value = weight * weight * 4;
    constexpr double kNoFloat = 1e300;  // only float64 has numbers of this size
    for (int step = 0; step < 3; ++step) {
      reducer.begin_step({.weight = weight});
      write_gradient<float>(*group, reducer, 0, value);
      write_gradient<bfloat16>(*group, reducer, 1, value);
      write_gradient<double>(*group, reducer, 2, value * kNoFloat);
      write_gradient<float16>(*group, reducer, 3, value);
      write_gradient<bfloat16>(*group, reducer, 4, value);
      for (int p = 4; p >= 0; --p) reducer.mark_ready(p);
      finish(group, reducer, static_cast<std::int64_t>(total));
      const double mean = sum / total;
      const auto last = [&]<typename T>(T, int p) { return number(gradient_of<T>(*group, reducer, p)[32]); };
      EXPECT_NEAR(last(float{}, 0), mean, 1e-6 * mean);
      EXPECT_NEAR(last(bfloat16{}, 1), mean, mean / 256);
      EXPECT_NEAR(last(double{}, 2) / kNoFloat, mean, 1e-15 * mean);
      EXPECT_NEAR(last(float16{}, 3), mean, mean / 2048);
      EXPECT_NEAR(last(bfloat16{}, 4), mean, mean / 256);
    }
  });
}

TEST_P(ReducerSuite, PlansAnewOnceInTheOrderThatRank0Saw) {
  run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    const int ranks = group->size();
    for (int step = 0; step < 4; ++step) {
      // What is seen in an unsynchronised micro-batch doesn't count.
      reducer.begin_step({.weight = 1, .synchronize = false});
      EXPECT_EQ(reducer.plan_changes(), step == 0 ? 0 : 1);
      backward(group, reducer, 1);
      reducer.finish_step();
      const BucketPlan before = reducer.plan();
      reducer.begin_step({.weight = 1});
      EXPECT_EQ(reducer.plan().buckets[0].parameters, before.buckets[0].parameters) << "moved while it held gradients";
      if (group->rank() == 0) {
        for (const int p : {0, 1, 2, 3, 4}) {  // f is never ready
          write_gradient(*group, reducer, p, 1);
          reducer.mark_ready(p);
        }
      } else {
        backward(group, reducer, 1);
      }
      finish(group, reducer, 2 * ranks);
      for (int p = 0; p < 6; ++p) {
        const int sum = ranks * (p + 1) + (p == 5 ? 0 : 1) + (ranks - 1) * (p + 1);
        EXPECT_FLOAT_EQ(first(group, reducer, p), static_cast<float>(sum) / static_cast<float>(2 * ranks)) << step;
      }
    }
    EXPECT_EQ(reducer.plan().buckets[0].parameters, (std::vector<int>{0, 1}));
    EXPECT_EQ(reducer.plan().buckets[2].parameters, (std::vector<int>{4, 5}));
  });
}

TEST_P(ReducerSuite, FollowsThePlannedOrderOfRank0FromTheFirstStep) {
  run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    // Only rank 0's counts: an order of another length elsewhere does no harm.
    reducer.plan_order(group->rank() == 0 ? std::vector<int>{1, 3, 5, 0, 2, 4} : std::vector<int>{0});
    EXPECT_EQ(reducer.plan_changes(), 1);
    EXPECT_EQ(reducer.plan().buckets[0].parameters, (std::vector<int>{1, 3}));
    for (int step = 0; step < 3; ++step) {
      reducer.begin_step({.weight = 1});
      backward(group, reducer, 1);
      reducer.finish_step();
      EXPECT_EQ(reducer.plan_changes(), 1);
      EXPECT_FLOAT_EQ(first(group, reducer, 4), 5.0f);
    }
    EXPECT_THROW(reducer.plan_order(kBackward), InvalidArgument);
  });
}

TEST_P(ReducerSuite, EveryRankLearnsWhatAnyRankUsed) {
  for (const BucketOptions& buckets : {kTwoEach.buckets, BucketOptions{}}) {
    run([&](const Group& group) {
      Reducer reducer(kSix, group, {.buckets = buckets, .track_unused = true});
      reducer.plan_order(kBackward);
      const auto used = [&] {
        std::string text;
        for (int p = 0; p < 6; ++p) text += reducer.used_anywhere(p) ? 'x' : '-';
        return text;
      };
      EXPECT_EQ(used(), "------") << "before the first step";
      // Asked in every step, or after several that nobody asked for: the host may be ahead.
      for (const int ahead : {1, 1, 5}) {
        for (int k = 0; k < ahead; ++k) {
          reducer.begin_step({.weight = 2});
          write_gradient(*group, reducer, 3, 2);
          reducer.mark_ready(3);
          const int rare = k == 3 ? 5 : k;
          if (group->rank() == k % group->size()) {
            write_gradient(*group, reducer, rare, 6);
            reducer.mark_ready(rare);
          }
          reducer.finish_step();
        }
        EXPECT_EQ(used(), ahead == 1 ? "x--x--" : "---xx-");
        EXPECT_EQ(reducer.total_weight(), 2 * group->size());
        EXPECT_FLOAT_EQ(first(group, reducer, ahead - 1), 3.0f / static_cast<float>(group->size()));
        EXPECT_EQ(first(group, reducer, 3), 1.0f);
        EXPECT_EQ(first(group, reducer, 5), 0.0f);
      }
      // What was used is of each step anew.
      reducer.begin_step({.weight = 2});
      reducer.finish_step();
      EXPECT_EQ(used(), "------");
    });
  }
}

TEST_P(ReducerSuite, TellsTwoReducersOfOneGroupApart) {
  run([](const Group& group) {
    Reducer one(kSix, group);
    Reducer other({{"x", DType::f32, {3}}}, group);
    other.begin_step();
    one.begin_step();
    backward(group, other, 1);
    other.finish_step();
    backward(group, one, 2);
    one.finish_step();
    EXPECT_FLOAT_EQ(first(group, other, 0), 1.0f);
    EXPECT_FLOAT_EQ(first(group, one, 2), 6.0f);
  });
}

// On a device the memory of one that has gone may be another's before the device is through with it.
TEST_P(ReducerSuite, ReducersMayFollowEachOtherWithoutAWait) {
  run([](const Group& group) {
    for (int round = 0; round < 5; ++round) {
      Reducer reducer(kSix, group, {.buckets = kTwoEach.buckets, .track_unused = true});
      for (int step = 0; step < 2; ++step) {
        reducer.begin_step({.weight = 1});
        backward(group, reducer, round);
        reducer.finish_step();
      }
      if (round == 4) {
        EXPECT_EQ(first(group, reducer, 1), 8.0f);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ReducerSuite, ::testing::ValuesIn(kWorldSizes));

}  // namespace
}  // namespace lockstep::testing::steps_test
