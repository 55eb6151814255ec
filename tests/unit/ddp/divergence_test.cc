// SPDX-License-Identifier: Apache-2.0
// Replicas stay equal or the run says so: what rides with a step, when parameters are compared, and what is said then.
#include <gtest/gtest.h>

#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/ddp/reducer.h"
#include "lockstep/job/cause.h"
#include "runtime/ddp/equality/divergence_check.h"
#include "tests/support/error_of.h"
#include "tests/unit/ddp/fake_group.h"

namespace lockstep::divergence_test {
namespace {

using lockstep::testing::expect_text;
using testing::FakeWorld;
using testing::Started;
using testing::text_of;
using Group = std::shared_ptr<ProcessGroup>;

// A model of two parameters, whose optimizer counts its writes.
class Training {
 public:
  explicit Training(const Group& group, std::int64_t every = 0)
      : group_(group),
        reducer_({{"w", DType::f32, {3}}, {"b", DType::f32, {}}}, group),
        check_(group, every,
               {[this] { return versions_; },
                [this] {
                  return DivergenceCheck::Replica::State{{{"w", std::span(w)}, {"b", std::span(b)}}};
                }}) {
    reducer_.plan_order(std::vector<int>{1, 0});
  }

  void backward(std::int64_t weight = 1, bool synchronize = true) {
    reducer_.begin_step(
        {.weight = weight, .synchronize = synchronize, .note = synchronize ? check_.note(step_) : StepNote{}});
    for (const int parameter : {1, 0}) {
      *reducer_.gradient<float>(parameter) = static_cast<float>(weight);
      reducer_.mark_ready(parameter);
    }
    reducer_.finish_step();
    if (synchronize) check_.judge(step_++, reducer_.noted());
  }
  void optimize() {
    w[0] -= *reducer_.gradient<float>(0);
    b[0] -= *reducer_.gradient<float>(1);
    versions_ += 2;
  }
  void count_a_write() { ++versions_; }
  const NotedStep& noted() const { return reducer_.noted(); }

  std::vector<float> w = {1, 2, 3};
  std::vector<float> b = {4};

 private:
  Group group_;
  std::uint64_t versions_ = 0;
  std::int64_t step_ = 0;
  Reducer reducer_;
  DivergenceCheck check_;  // asks for the versions at once
};

// Beside the Reducer's own two, of the models.
std::size_t comparisons(const FakeWorld& world) {
  std::size_t count = 0;
  for (const Started& it : world.started(0)) count += it.operation == "all_gather";
  return world.size() == 1 ? count : count - 2;
}

Cause cause_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Mismatch& mismatch) {
    return mismatch.cause() != nullptr ? *mismatch.cause() : Cause{};
  }
}

TEST(StepNote, ComesBackFromAllRanksWithTheStep) {
  FakeWorld world(3);
  world.run([](const Group& group) {
    Reducer reducer({{"w", DType::f32, {3}}}, group);
    EXPECT_EQ(reducer.noted().step, -1);
    for (int step = 0; step < 4; ++step) {
      for (const bool synchronize : {false, true}) {
        // Without data a rank has its say like the others.
        reducer.begin_step({.weight = group->rank() == 2 ? 0 : 1,
                            .synchronize = synchronize,
                            .note = {.versions = step == 1 ? group->rank() : 7, .digest = step / 2}});
        reducer.finish_step();
      }
      EXPECT_EQ(reducer.noted().step, step);
      EXPECT_EQ(reducer.noted().of_all.versions, step != 1);
      EXPECT_EQ(reducer.noted().of_all.digest, 1);
    }
  });
}

TEST(Divergence, ARankThatLeftAStepOutIsNamedInTheNext) {
  for (const int ranks : {2, 3, 4}) {
    FakeWorld world(ranks);
    const auto errors = world.run_catching([](const Group& group) {
      Training training(group);
      for (int step = 0; step < 10; ++step) {
        training.backward();
        if (step != 3 || group->rank() != 1) training.optimize();
      }
    });
    for (const auto& error : errors) {
      EXPECT_EQ(text_of(error), text_of(errors[0]));
      expect_text(text_of(error),
                  {"the replicas are not equal any more; they came apart before step 4: 2 of 2 "
                   "parameters differ, the first is parameter 0, 'w': " +
                   std::string(ranks == 2 ? "ranks 0 and 1 differ" : "rank 1 differs from the others")});
      const Cause cause = cause_of(error);
      EXPECT_EQ(cause.kind, Cause::Kind::mismatch);
      EXPECT_EQ(cause.step, 4);
      EXPECT_EQ(cause.rank, ranks == 2 ? -1 : 1) << "of two nobody knows which one is wrong";
    }
  }
}

TEST(Divergence, AWriteThatNobodyCountsIsFoundByTheNextDigest) {
  FakeWorld world(3);
  const auto errors = world.run_catching([](const Group& group) {
    Training training(group, 5);
    for (int step = 0; step < 20; ++step) {
      training.backward();
      training.optimize();
      if (step == 6 && group->rank() == 2) training.b[0] += 1;
    }
  });
  for (const auto& error : errors) {
    expect_text(text_of(error), {"they came apart between step 5 and step 10: 1 of 2 parameters differ, the first is "
                                 "parameter 1, 'b': rank 2 differs from the others"});
    EXPECT_EQ(cause_of(error).step, 10);
  }
}

TEST(Divergence, EqualValuesAreNoErrorAndAreComparedOnce) {
  FakeWorld world(3);
  world.run([](const Group& group) {
    Training training(group);
    for (int step = 0; step < 10; ++step) {
      if (step == 4 && group->rank() == 0) training.count_a_write();
      training.backward();
      EXPECT_EQ(training.noted().of_all.versions, step != 4) << step;
      training.optimize();
    }
  });
  EXPECT_EQ(comparisons(world), 1u);
}

// The counts may differ for ever; a rank that leaves a step out afterwards is found all the same.
TEST(Divergence, IsFoundAfterCountsThatDifferedOverEqualValues) {
  FakeWorld world(2);
  const auto errors = world.run_catching([](const Group& group) {
    Training training(group);
    for (int step = 0; step < 10; ++step) {
      if (step == 2 && group->rank() == 0) training.count_a_write();
      training.backward();
      if (step != 6 || group->rank() == 1) training.optimize();
    }
  });
  expect_text(text_of(errors[0]), {"between step 2 and step 7"});
}

TEST(Divergence, ADigestIsNoCollectiveOfItsOwn) {
  FakeWorld world(2);
  world.run([](const Group& group) {
    Training training(group, 2);
    for (int step = 0; step < 9; ++step) {
      training.backward();
      training.optimize();
    }
  });
  EXPECT_EQ(comparisons(world), 0u);
}

TEST(Divergence, RanksWithOtherIntervalsOrNoDataOrMicroBatchesGoOn) {
  FakeWorld world(3);
  world.run([](const Group& group) {
    Training training(group, 2 + group->rank());
    for (int step = 0; step < 15; ++step) {
      training.backward(group->rank(), false);
      training.backward(group->rank() == 0 ? 0 : step % 3);
      training.optimize();
    }
  });
}

TEST(Divergence, AWorldOfOneHasNothingToCompare) {
  FakeWorld world(1);
  world.run([](const Group& group) {
    Training training(group, 1);
    for (int step = 0; step < 3; ++step) {
      training.backward();
      training.count_a_write();
    }
  });
  EXPECT_EQ(comparisons(world), 0u);
}

TEST(Divergence, RefusesAnIntervalBelowZero) {
  FakeWorld world(1);
  const DivergenceCheck::Replica none{[] { return 0u; }, [] { return DivergenceCheck::Replica::State{}; }};
  EXPECT_THROW(DivergenceCheck(world.group(0), -1, none), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::divergence_test
