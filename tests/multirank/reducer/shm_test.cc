// SPDX-License-Identifier: Apache-2.0
// What is of the CPU alone: when buckets go off, weights in a unit, and a rank that leaves while others wait for it.
#include <atomic>

#include "lockstep/base/error.h"
#include "lockstep/trace/step_record.h"
#include "tests/multirank/reducer/suite.h"
#include "tests/support/error_of.h"

namespace lockstep::testing::shm_test {
namespace {

// An MLP's shapes: about 70,000 parameters, twelve tensors.
std::vector<ParameterSpec> layers() {
  std::vector<ParameterSpec> specs;
  for (int layer = 0; layer < 6; ++layer) {
    specs.push_back({"layer" + std::to_string(layer) + ".weight", DType::f32, {107, 107}});
    specs.push_back({"layer" + std::to_string(layer) + ".bias", DType::f32, {107}});
  }
  return specs;
}
const ReducerOptions kSmallBuckets{{.cap_bytes = 64 << 10, .first_cap_bytes = 32 << 10}};

TEST_P(ReducerSuite, LaunchesBeforeTheLastGradientInEveryStep) {
  run([](const Group& group) {
    Reducer reducer(layers(), group, kSmallBuckets);
    EXPECT_EQ(reducer.last_step().step, -1);
    const std::size_t buckets = reducer.plan().buckets.size();
    ASSERT_GE(buckets, 4u);
    for (int step = 0; step < 20; ++step) {
      reducer.begin_step({.weight = 1});
      backward(group, reducer, 1);
      reducer.finish_step();
      const trace::StepRecord& record = reducer.last_step();
      EXPECT_EQ(record.step, step);
      EXPECT_EQ(record.gradients_ready, 12);
      ASSERT_EQ(record.buckets.size(), buckets);
      EXPECT_LE(record.begin, record.buckets[0].ready);
      int ready = 0;
      for (std::size_t b = 0; b < buckets; ++b) {
        const trace::BucketRecord& bucket = record.buckets[b];
        ready += static_cast<int>(reducer.plan().buckets[b].parameters.size());
        EXPECT_EQ(bucket.gradients_ready, ready);
        EXPECT_EQ(bucket.bytes, static_cast<std::size_t>(reducer.plan().buckets[b].count) * sizeof(float));
        EXPECT_LE(bucket.ready, bucket.launched);
        EXPECT_LE(bucket.launched, bucket.finished);
        EXPECT_LE(bucket.finished, record.end);
      }
      EXPECT_LT(record.buckets[0].gradients_ready, record.gradients_ready);
      EXPECT_LT(record.buckets[0].launched, record.last_gradient_ready);
      EXPECT_GT(record.waited.count(), 0);
      EXPECT_GT(record.hidden.count(), 0);
      EXPECT_GT(record.under_way.count(), 0);
      EXPECT_LE(record.hidden, record.last_gradient_ready - record.begin);
      EXPECT_LE(record.under_way, record.last_gradient_ready - record.buckets[0].launched);
    }
  });
}

TEST(ReducerShm, CountsWeightsInTheUnitOfRank0) {
  run_suite(3, [](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    EXPECT_EQ(reducer.weight_unit(), 1);
    if (group->rank() == 0) {
      EXPECT_THROW(reducer.plan_order(kBackward, 0), InvalidArgument);
    }
    reducer.plan_order(kBackward, group->rank() == 0 ? 8 : -1);
    EXPECT_EQ(reducer.weight_unit(), 8);
    // Means 1, 2 and 3 of 8, 4 and 0 rows; then of as many on each rank.
    const std::int64_t uneven[] = {8, 4, 0};
    for (const bool even : {false, true}) {
      const std::int64_t weight = even ? 8 : uneven[group->rank()];
      reducer.begin_step({.weight = weight});
      backward(group, reducer, (group->rank() + 1) * static_cast<double>(weight) / 8);
      finish(group, reducer, even ? 24 : 12);
      EXPECT_FLOAT_EQ(first(group, reducer, 0), even ? 2.0f : 16.0f / 12);
    }
  });
}

TEST(ReducerShm, ARankThatStopsTrainingEarlyIsNamedInTheOthersStep) {
  std::atomic<int> seen{0};
  run_suite(3, [&](const Group& group) {
    Reducer reducer(layers(), group, kSmallBuckets);
    const auto train = [&](int steps) {
      for (int step = 0; step < steps; ++step) {
        reducer.begin_step({.weight = 1});
        for (int p = 11; p >= 0; --p) reducer.mark_ready(p);
        reducer.finish_step();
      }
    };
    if (group->rank() == 1) return train(3);
    const auto error = thrown_by<PeerLost>([&] { train(5); });
    ASSERT_TRUE(error);
    ++seen;
    expect_cause(*error, {.kind = Cause::Kind::left, .rank = 1, .text = "left after collective"});
    // The first that starts a collective of step 3 fails the group; a slower rank may still end step 2.
    EXPECT_TRUE(error->cause()->step == 3 || error->cause()->step == 2) << error->what();
  });
  EXPECT_EQ(seen, 2);
}

}  // namespace
}  // namespace lockstep::testing::shm_test
