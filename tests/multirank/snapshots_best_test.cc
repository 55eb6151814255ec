// SPDX-License-Identifier: Apache-2.0
// Snapshots that are kept for their value.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "tests/multirank/snapshot_program.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::snapshots_best_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Evaluates after each of `values`.size() steps: the value of step i + 1 is values[i]. What save_if_best() said.
std::vector<bool> evaluate_each(int ranks, const fs::path& folder, const std::vector<double>& values,
                                const SnapshotOptions& options) {
  std::vector<bool> said;
  run_ranks(ranks, [&](const Group& group) {
    Program it(group, folder, options);
    it.snapshots.restore();
    for (const double value : values) {
      it.train(it.ddp.steps() + 1);
      // Rank 0's counts, whatever the others think.
      const bool is_best = it.snapshots.save_if_best(group->rank() == 0 ? value : -value);
      it.snapshots.wait();
      if (group->rank() == 0) said.push_back(is_best);
    }
  });
  return said;
}

// The steps of the snapshots that are there.
std::vector<std::int64_t> steps_in(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : snapshots_in(folder)) steps.push_back(std::stoll(name.substr(name.find('-') + 1)));
  return steps;
}

TEST(BestSnapshots, TheLowestValuesAreKeptBesideTheNewest) {
  const TemporaryFolder folder;
  EXPECT_THAT(evaluate_each(2, folder / "run", {5, 3, 4, 9, kNan, 3, 2.5, 8}, {.keep = 1, .keep_best = 2}),
              ElementsAre(true, true, true, false, false, true, true, false));
  // 3 of step 2 is better than 3 of step 6: it came first.
  EXPECT_THAT(steps_in(folder / "run"), ElementsAre(2, 7));
}

TEST(BestSnapshots, TheHighestWhereTheOptionsSaySo) {
  const TemporaryFolder folder;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_THAT(evaluate_each(1, folder / "run", {0.5, 0.25, kInfinity, 0.75},
                            {.keep = 1, .keep_best = 2, .higher_is_better = true}),
              ElementsAre(true, true, true, true));
  EXPECT_THAT(steps_in(folder / "run"), ElementsAre(3, 4));
}

TEST(BestSnapshots, ASnapshotThatIsThereIsKeptForItsValue) {
  const TemporaryFolder folder;
  EXPECT_THAT(evaluate_each(2, folder / "run", {1, 2, 3, 4, 5, 6}, {.every = 2, .keep = 1, .keep_best = 1}),
              ElementsAre(true, false, false, false, false, false));
  EXPECT_THAT(steps_in(folder / "run"), ElementsAre(1, 6));
  const TemporaryFolder other;
  EXPECT_THAT(evaluate_each(2, other / "run", {6, 1, 5, 4}, {.every = 2, .keep = 1, .keep_best = 1}),
              ElementsAre(true, true, false, false));
  EXPECT_THAT(steps_in(other / "run"), ElementsAre(2, 4));
}

TEST(BestSnapshots, CountOverStartsAndWhatHasNoValueIsNone) {
  const TemporaryFolder folder;
  const SnapshotOptions options{.keep = 1, .keep_best = 1};
  evaluate_each(2, folder / "run", {7, 2}, options);
  EXPECT_THAT(evaluate_each(2, folder / "run", {3, 4}, options), ElementsAre(false, false));
  EXPECT_THAT(steps_in(folder / "run"), ElementsAre(2));
  run(2, folder / "run", 6, {.every = 2, .keep = 1, .keep_best = 1});
  EXPECT_THAT(steps_in(folder / "run"), ElementsAre(2, 6));
  run(2, folder / "run", 8, {.every = 2, .keep = 1});
  EXPECT_THAT(steps_in(folder / "run"), ElementsAre(8)) << "who asks for none gets none";
}

TEST(BestSnapshots, ItsModelIsLoadedOnEveryRankAndTheLastStepIsSavedBefore) {
  for (const bool has_own_disks : {false, true}) {
    const TemporaryFolder folder;
    std::vector<Values> best(3), loaded(3);
    run_ranks(3, [&](const Group& group) {
      const auto rank = static_cast<std::size_t>(group->rank());
      const fs::path disk = has_own_disks ? folder / std::to_string(rank) : folder / "run";
      Program it(group, disk, {.keep = 1, .keep_best = 1});
      EXPECT_FALSE(it.snapshots.restore());
      for (const double value : {3.0, 1.0, 2.0}) {
        it.train(it.ddp.steps() + 1);
        if (it.snapshots.save_if_best(value)) best[rank] = weights_of(it.model);
      }
      it.train(5);
      const Values last = weights_of(it.model);
      const auto found = it.snapshots.load_best_model();
      if (!found) throw InvalidArgument("there is none");
      EXPECT_EQ(found->step, 2);
      EXPECT_EQ(found->value, 1.0);
      loaded[rank] = weights_of(it.model);
      EXPECT_NE(loaded[rank], last);
      EXPECT_THAT(error_of([&] { it.snapshots.step(); }), HasSubstr("step() was called after load_best_model()"));
    });
    EXPECT_EQ(loaded, best);
    EXPECT_EQ(run(1, has_own_disks ? folder / "0" : folder / "run", 6).restored, 5);
  }
}

TEST(BestSnapshots, WhereNoneHasAValueThereIsNoBest) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const Group& group) {
    Program it(group, folder / "run", {.every = 1});
    EXPECT_THAT(error_of([&] { it.snapshots.save_if_best(1); }),
                HasSubstr("save_if_best() was called before restore()"));
    it.snapshots.restore();
    EXPECT_THAT(error_of([&] { it.snapshots.save_if_best(1); }), HasSubstr("keep_best, which is 0"));
    it.train(2);
    EXPECT_FALSE(it.snapshots.load_best_model());
    it.train(3);  // nothing was changed
  });
  EXPECT_EQ(run(2, folder / "run", 3).restored, 3);
}

}  // namespace
}  // namespace lockstep::testing::snapshots_best_test
