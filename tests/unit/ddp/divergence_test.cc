// SPDX-License-Identifier: Apache-2.0
// Replicas stay equal or the run says so: what rides with a step, when parameters are compared, and what is said then.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/ddp/reducer.h"
#include "runtime/comm/group_internals.h"
#include "runtime/ddp/equality/divergence_check.h"
#include "tests/support/cause_of.h"
#include "tests/support/thrown_on.h"

namespace lockstep::divergence_test {
namespace {

using testing::run_ranks;
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
    before_ = group_->internals().last_sequence();
  }

  // A step is one collective; this returns how many more there were.
  std::int64_t other_collectives() const { return group_->internals().last_sequence() - before_ - step_; }
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
  std::int64_t step_ = 0, before_ = 0;
  Reducer reducer_;
  DivergenceCheck check_;  // asks for the versions at once
};

TEST(StepNote, ComesBackFromAllRanksWithTheStep) {
  run_ranks(3, [](const Group& group) {
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

TEST(Divergence, IsNamedOnAllRanks) {
  struct Case {
    int ranks;
    std::int64_t every;
    std::function<void(Training& training, int rank, int step)> update;
    int rank;  // of two nobody knows which one is wrong
    std::int64_t step;
    const char* text;
  };
  const auto leaves_out_step_3 = [](Training& training, int rank, int step) {
    if (step != 3 || rank != 1) training.optimize();
  };
  const Case cases[] = {
      {3, 0, leaves_out_step_3, 1, 4,
       "the replicas are not equal any more; they came apart before step 4: 2 of 2 parameters differ, the first is "
       "parameter 0, 'w': rank 1 differs from the others"},
      {2, 0, leaves_out_step_3, -1, 4, "'w': ranks 0 and 1 differ"},
      // A write that nobody counts, found by the next digest.
      {3, 5,
       [](Training& training, int rank, int step) {
         training.optimize();
         if (step == 6 && rank == 2) training.b[0] += 1;
       },
       2, 10,
       "they came apart between step 5 and step 10: 1 of 2 parameters differ, the first is parameter 1, 'b': rank 2 "
       "differs from the others"},
      // After counts that differ for ever over equal values.
      {2, 0,
       [](Training& training, int rank, int step) {
         if (step != 6 || rank == 1) training.optimize();
         if (step == 1 && rank == 0) training.count_a_write();
       },
       -1, 7, "between step 2 and step 7"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    const auto thrown = testing::thrown_on(c.ranks, [&](const Group& group) {
      Training training(group, c.every);
      for (int step = 0; step < 20; ++step) {
        training.backward();
        c.update(training, group->rank(), step);
      }
    });
    for (const auto& error : thrown) {
      ASSERT_NE(error, nullptr);
      const Cause cause = testing::cause_of<Mismatch>([&] { std::rethrow_exception(error); });
      testing::expect_cause(cause, {.kind = Cause::Kind::mismatch, .step = c.step, .text = c.text});
      EXPECT_EQ(cause.rank, c.rank);
      EXPECT_EQ(testing::text_of(error), testing::text_of(thrown[0]));
    }
  }
}

TEST(Divergence, EqualValuesAreNoErrorAndAreComparedOnce) {
  run_ranks(3, [](const Group& group) {
    Training training(group);
    for (int step = 0; step < 10; ++step) {
      if (step == 4 && group->rank() == 0) training.count_a_write();
      training.backward();
      EXPECT_EQ(training.noted().of_all.versions, step != 4) << step;
      training.optimize();
    }
    EXPECT_EQ(training.other_collectives(), 1);
  });
}

TEST(Divergence, ADigestIsNoCollectiveOfItsOwn) {
  run_ranks(2, [](const Group& group) {
    Training training(group, 2);
    for (int step = 0; step < 9; ++step) {
      training.backward();
      training.optimize();
    }
    EXPECT_EQ(training.other_collectives(), 0);
  });
}

TEST(Divergence, RanksWithOtherIntervalsOrNoDataOrMicroBatchesGoOn) {
  run_ranks(3, [](const Group& group) {
    Training training(group, 2 + group->rank());
    for (int step = 0; step < 15; ++step) {
      training.backward(group->rank(), false);
      training.backward(group->rank() == 0 ? 0 : step % 3);
      training.optimize();
    }
  });
}

TEST(Divergence, AWorldOfOneHasNothingToCompare) {
  run_ranks(1, [](const Group& group) {
    Training training(group, 1);
    for (int step = 0; step < 3; ++step) {
      training.backward();
      training.count_a_write();
    }
    EXPECT_EQ(training.other_collectives(), 0);
    EXPECT_THROW(Training(group, -1), InvalidArgument);
  });
}

}  // namespace
}  // namespace lockstep::divergence_test
