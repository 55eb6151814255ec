// SPDX-License-Identifier: Apache-2.0
// What becomes of a step that a rank can't finish, on every backend.
#include "lockstep/base/error.h"
#include "tests/multirank/reducer/suite.h"
#include "tests/support/error_of.h"

namespace lockstep::testing::failures_test {
namespace {

using Kind = Cause::Kind;

// An abort overtakes: a slower rank may still be at the end of the step before.
void expect_place(const Error& error, std::int64_t step) {
  ASSERT_NE(error.cause(), nullptr) << error.what();
  const std::int64_t seen = error.cause()->step;
  EXPECT_TRUE(seen == step || seen == step - 1) << error.what();
  EXPECT_TRUE(std::string(error.what()).starts_with("step " + std::to_string(seen) + ", ")) << error.what();
}

TEST(ReducerFailures, APeerThatLeavesInAStepIsSeenByAllInTheirs) {
  run_suite(3, [&](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    const auto step = [&](bool leaves) {
      reducer.begin_step({.weight = 1});
      for (const int p : kBackward) {
        if (leaves && p == 2) return group->abort("rank 1 has no more power");
        write_gradient(*group, reducer, p, 1);
        reducer.mark_ready(p);
      }
      reducer.finish_step();
      reducer.total_weight();  // so that nobody runs steps ahead
    };
    if (group->rank() == 1) {
      for (int k = 0; k < 3; ++k) step(k == 2);
      return;
    }
    const auto error = thrown_by<PeerLost>([&] {
      for (int k = 0; k < 3; ++k) step(false);
    });
    ASSERT_TRUE(error);
    expect_cause(*error, {.kind = Kind::aborted, .rank = 1, .text = "rank 1 has no more power"});
    expect_place(*error, 2);
    // What every later call throws.
    const std::string cause = error->what();
    EXPECT_EQ(error_of<PeerLost>([&] { reducer.finish_step(); }), cause);
    EXPECT_EQ(error_of<PeerLost>([&] { reducer.begin_step(); }), cause);
    EXPECT_EQ(error_of<PeerLost>([&] { reducer.mark_ready(0); }), cause);
    EXPECT_EQ(error_of<PeerLost>([&] { reducer.plan_order(kBackward); }), cause);
    if (group->device().kind == DeviceKind::cpu) return;
    EXPECT_EQ(error_of<PeerLost>([&] { reducer.total_weight(); }), cause);
  });
}

TEST(ReducerFailures, AReducerDroppedInAStepFailsTheOthersWithItsRank) {
  // Before a hook has its first bucket the others have nothing of a rank's step but its announcement.
  for (const auto& [gradients, hook] : {std::pair(2, CommHook()), std::pair(0, plain_hook())}) {
    run_suite(2, [&, left_at = 6 - gradients, hook = hook](const Group& group) {
      const auto use = [&](int last) {
        Reducer reducer(kSix, group, {.buckets = kTwoEach.buckets, .comm_hook = hook});
        reducer.begin_step({.weight = 1});
        for (int p = 5; p >= last; --p) {
          write_gradient(*group, reducer, p, 1);
          reducer.mark_ready(p);
        }
        if (last > 0) return;  // and never finishes
        reducer.finish_step();
        reducer.total_weight();
      };
      if (group->rank() == 1) return use(left_at);
      const auto error = thrown_by<PeerLost>([&] { use(0); });
      ASSERT_TRUE(error);
      expect_cause(*error, {.kind = Kind::aborted, .rank = 1, .text = "rank 1 left step 0 before finish_step"});
    });
  }
}

}  // namespace
}  // namespace lockstep::testing::failures_test
