// SPDX-License-Identifier: Apache-2.0
// NaN and infinity in a rank's own gradients, on every backend: whose they are, in which parameter and step.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/multirank/reducer/suite.h"
#include "tests/support/thrown_on.h"
#include "tests/support/warnings.h"

namespace lockstep::testing::not_finite_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A backward in which the last element of some parameters is `wrong`.
void backward_with(const Group& group, Reducer& reducer, double wrong, const std::vector<int>& parameters) {
  for (const int p : kBackward) {
    const bool is_wrong = std::find(parameters.begin(), parameters.end(), p) != parameters.end();
    const std::int64_t last = reducer.parameters()[static_cast<std::size_t>(p)].count() - 1;
    write_gradient(*group, reducer, p, [=](std::int64_t i) { return is_wrong && i == last ? wrong : 1.0; });
    reducer.mark_ready(p);
  }
}

TEST_P(ReducerSuite, NamesTheParameterAndTheRankThatANanCameFrom) {
  Warnings warnings;
  const int last = GetParam() - 1;
  run([&](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    for (int step = 0; step < 12; ++step) {
      reducer.begin_step({.weight = 1});
      // In step 3 of parameters e, d and a: the first in the order of backward counts.
      if (group->rank() == last && step == 3) {
        backward_with(group, reducer, kNan, {4, 3, 0});
      } else if (group->rank() == last && (step == 4 || step == 8)) {
        backward_with(group, reducer, -kInfinity, {1});
      } else {
        backward_with(group, reducer, 0, {});
      }
      reducer.finish_step();
      reducer.total_weight();
      EXPECT_FALSE(std::isnan(first(group, reducer, 3))) << "of another element";
    }
  });
  const std::string whose = " in rank " + std::to_string(last) + "'s gradient of ";
  const auto texts = warnings.lines();
  ASSERT_EQ(texts.size(), 2u) << "step 4 goes on with what step 3 began, and on no other rank it begins";
  expect_text(texts[0], {"Reducer: NaN" + whose + "'e' in step 3. "});
  expect_text(texts[1], {"Reducer: infinity" + whose + "'b' in step 8 (occurrence 2). "});
}

// As an overflow does that a loss scaler makes every now and then.
TEST_P(ReducerSuite, TellsOftenRepeatedOnesLessOften) {
  Warnings warnings;
  run([&](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    for (int step = 0; step < 40; ++step) {
      reducer.begin_step({.weight = 1});
      backward_with(group, reducer, kNan, group->rank() == 0 && step % 2 == 0 ? std::vector{5} : std::vector<int>{});
      reducer.finish_step();
      reducer.total_weight();
    }
  });
  EXPECT_EQ(warnings.lines().size(), 5u) << "the 1st, 2nd, 4th, 8th and 16th";
}

TEST_P(ReducerSuite, RaisesANanOnEveryRankBeforeItHasGoneIntoAnything) {
  const auto thrown = thrown_on(
      GetParam(),
      [](const Group& group) {
        const Compute compute(group);
        Reducer reducer(kSix, group, {.buckets = kTwoEach.buckets, .not_finite = NotFinite::raise});
        for (int step = 0; step < 50; ++step) {
          reducer.begin_step({.weight = 1});
          backward_with(group, reducer, kNan, group->rank() == 0 && step == 2 ? std::vector{2} : std::vector<int>{});
          reducer.finish_step();
          reducer.total_weight();
        }
      },
      suite_options(GetParam()));
  for (const auto& error : thrown) {
    expect_text(text_of(error),
                {error == thrown[0] ? "exception: " : "PeerLost: ", "NaN in rank 0's gradient of 'c' in step 2"});
  }
  EXPECT_THROW(std::rethrow_exception(thrown[0]), NotFiniteGradient);
}

// On a device it is looked at all the same.
TEST_P(ReducerSuite, DoesNotReadAGradientThatTheEngineHasDeclaredFiniteInThisStep) {
  Warnings warnings;
  bool is_on_device = false;
  run([&](const Group& group) {
    if (group->rank() == 0) is_on_device = group->device().kind != DeviceKind::cpu;
    Reducer reducer(kSix, group, kTwoEach);
    for (int step = 0; step < 12; ++step) {  // a device tells of a step some steps later
      reducer.begin_step({.weight = 1});
      if (step == 1) reducer.declare_finite(5);
      const std::vector<int> wrong = step == 1 ? std::vector{5, 4} : step == 5 ? std::vector{5} : std::vector<int>{};
      backward_with(group, reducer, kNan, group->rank() == 0 ? wrong : std::vector<int>{});
      reducer.finish_step();
      reducer.total_weight();
    }
  });
  const auto texts = warnings.lines();
  ASSERT_EQ(texts.size(), 2u);
  expect_text(texts[0], {is_on_device ? "gradient of 'f' in step 1" : "gradient of 'e' in step 1"});
  expect_text(texts[1], {"gradient of 'f' in step 5"});
}

TEST_P(ReducerSuite, LooksForNoNanWhereNobodyWantsIt) {
  Warnings warnings;
  run([&](const Group& group) {
    Reducer reducer(kSix, group, {.buckets = kTwoEach.buckets, .not_finite = NotFinite::ignore});
    for (int step = 0; step < 4; ++step) {
      reducer.begin_step({.weight = 1});
      backward_with(group, reducer, kNan, {2});
      reducer.finish_step();
      reducer.total_weight();
    }
  });
  EXPECT_TRUE(warnings.lines().empty());
}

}  // namespace
}  // namespace lockstep::testing::not_finite_test
