// SPDX-License-Identifier: Apache-2.0
// Snapshots of values that each rank has its own of, and snapshots that are kept for their value.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <stdexcept>

#include "lockstep/base/error.h"
#include "lockstep/comm/stop.h"
#include "tests/multirank/snapshot_program.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::snapshots_state_test {
namespace {

using ::testing::ElementsAre;

TEST(SnapshotsOfRanks, AStopThatAllHaveAgreedOnSavesWhatBelongsToEach) {
  const TemporaryFolder folder;
  for (const bool is_first : {true, false}) {
    run_ranks(3, [&](const Group& group) {
      Program it(group, folder / "run", {.every = 4});
      std::int64_t rows = 0;
      it.snapshots.add_per_rank("rows", rows);
      const auto restored = it.snapshots.restore();
      ASSERT_EQ(restored.has_value(), !is_first);
      if (restored) {
        EXPECT_EQ(restored->step, 6);
        EXPECT_EQ(rows, 100 + group->rank());
        return;
      }
      it.train(5);
      rows = 100 + group->rank();
      it.train(6);
      rows = 200;  // behind the last step
      if (group->rank() == 1) request_stop(*group, "enough");
      group->barrier().wait();
      EXPECT_EQ(should_stop(*group, StopView::all_ranks), "enough");  // as an evaluation's Metrics do
    });
  }
}

TEST(SnapshotsOfRanks, RanksThatAddDifferentThingsAreToldBeforeTheFirstStep) {
  const TemporaryFolder folder;
  const std::string text = error_of<Mismatch>([&] {
    run_ranks(2, [&](const Group& group) {
      Program it(group, folder / "run", {.every = 4});
      double other = 0;
      if (group->rank() == 1) it.snapshots.add("other", other);
      it.snapshots.restore();
    });
  });
  expect_text(text, {"rank 0 has added 'model' (Module), 'optimizer' (AdamW)", "and rank 1 ", "'other' (",
                     "in the same order"});
  EXPECT_FALSE(fs::exists(folder / "run" / "generation-000001.json"));
}

// What a dead rank had of its own nobody else has: a snapshot without it would be taken for whole.
TEST(SnapshotsOfRanks, ALostRankTakesTheStepsSinceTheLastSaveAlongUnlessItsValuesMayBeDropped) {
  for (const AtAnotherSize at_another_size : {AtAnotherSize::refuse, AtAnotherSize::sum, AtAnotherSize::drop}) {
    const TemporaryFolder folder;
    const auto program = [&](const Group& group, std::int64_t& rows) {
      auto it =
          std::make_unique<Program>(group, folder / "run", SnapshotOptions{.every = 4, .rescue = group->rank() != 1});
      it->snapshots.add_per_rank("rows", rows, at_another_size);
      return it;
    };
    EXPECT_ANY_THROW(run_ranks(2, [&](const Group& group) {
      std::int64_t rows = 10 + group->rank();
      const auto it = program(group, rows);
      it->snapshots.restore();
      it->train(6);
      group->barrier().wait();
      if (group->rank() == 1) throw std::runtime_error("this rank dies");
      it->train(9);
    }));
    run_ranks(2, [&](const Group& group) {
      std::int64_t rows = 0;
      const auto it = program(group, rows);
      const auto restored = it->snapshots.restore();
      ASSERT_TRUE(restored);
      const bool may_be_dropped = at_another_size == AtAnotherSize::drop;
      EXPECT_EQ(restored->step, may_be_dropped ? 6 : 4);
      EXPECT_EQ(rows, may_be_dropped && group->rank() == 1 ? 0 : 10 + group->rank());
    });
  }
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Evaluates after each of `values`.size() steps: the value of step i + 1 is values[i]. What save_if_best() said.
std::vector<bool> evaluate_each(int ranks, const fs::path& folder, const std::vector<double>& values,
                                const SnapshotOptions& options) {
  std::vector<bool> said;
  run_programs(
      std::vector<fs::path>(static_cast<std::size_t>(ranks), folder),
      [&](Program& it) {
        for (const double value : values) {
          it.train(it.ddp.steps() + 1);
          // Rank 0's counts, whatever the others think.
          const bool is_best = it.snapshots.save_if_best(it.group->rank() == 0 ? value : -value);
          it.snapshots.wait();
          if (it.group->rank() == 0) said.push_back(is_best);
        }
      },
      options);
  return said;
}

// The steps of the snapshots that are there.
std::vector<std::int64_t> steps_in(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : snapshots_in(folder)) steps.push_back(std::stoll(name.substr(name.find('-') + 1)));
  return steps;
}

TEST(BestSnapshots, AreKeptForTheirValuesBesideTheNewest) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  struct Case {
    const char* name;
    std::vector<double> values;
    SnapshotOptions options;
    std::vector<bool> are_best;
    std::vector<std::int64_t> kept;
  };
  for (const Case& one : {
           // 3 of step 2 is better than 3 of step 6: it came first.
           Case{"the lowest",
                {5, 3, 4, 9, kNan, 3, 2.5, 8},
                {.keep = 1, .keep_best = 2},
                {true, true, true, false, false, true, true, false},
                {2, 7}},
           Case{"the highest",
                {0.5, 0.25, kInfinity, 0.75},
                {.keep = 1, .keep_best = 2, .higher_is_better = true},
                {true, true, true, true},
                {3, 4}},
           Case{"none of those that were saved anyway",
                {1, 2, 3, 4},
                {.every = 2, .keep = 1, .keep_best = 1},
                {true, false, false, false},
                {1, 4}},
           Case{"one that was saved anyway",
                {6, 1, 5, 4},
                {.every = 2, .keep = 1, .keep_best = 1},
                {true, true, false, false},
                {2, 4}},
       }) {
    SCOPED_TRACE(one.name);
    const TemporaryFolder folder;
    EXPECT_EQ(evaluate_each(2, folder / "run", one.values, one.options), one.are_best);
    EXPECT_EQ(steps_in(folder / "run"), one.kept);
  }
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
  for (const Shard shard : {Shard::none, Shard::optimizer}) {
    for (const bool has_own_disks : {false, true}) {
      const TemporaryFolder folder;
      const std::vector<fs::path> disks = has_own_disks ? disks_in(folder, 3) : std::vector<fs::path>(3, folder / "0");
      run_programs(
          disks,
          [&](Program& it) {
            Values best;
            for (const double value : {3.0, 1.0, 2.0}) {
              it.train(it.ddp.steps() + 1);
              if (it.snapshots.save_if_best(value)) best = weights_of(it.model);
            }
            it.train(5);
            EXPECT_NE(weights_of(it.model), best);
            const auto found = it.snapshots.load_best_model();
            if (!found) throw InvalidArgument("there is none");
            EXPECT_EQ(found->step, 2);
            EXPECT_EQ(found->value, 1.0);
            EXPECT_EQ(weights_of(it.model), best);
            expect_text(error_of([&] { it.snapshots.step(); }), {"step() was called after load_best_model()"});
          },
          {.keep = 1, .keep_best = 1}, shard);
      EXPECT_EQ(run_on(disks, 6, {.every = 4}, shard).restored, 5);
    }
  }
}

TEST(BestSnapshots, WhereNoneHasAValueThereIsNoBest) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const Group& group) {
    Program it(group, folder / "run", {.every = 1});
    expect_text(error_of([&] { it.snapshots.save_if_best(1); }), {"save_if_best() was called before restore()"});
    it.snapshots.restore();
    expect_text(error_of([&] { it.snapshots.save_if_best(1); }), {"keep_best, which is 0"});
    it.train(2);
    EXPECT_FALSE(it.snapshots.load_best_model());
    it.train(3);  // nothing was changed
  });
  EXPECT_EQ(run(2, folder / "run", 3).restored, 3);
}

}  // namespace
}  // namespace lockstep::testing::snapshots_state_test
