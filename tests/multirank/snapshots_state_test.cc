// SPDX-License-Identifier: Apache-2.0
// Snapshots of what is not one replica: values that each rank has its own of, and two networks.
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

#include "lockstep/base/error.h"
#include "lockstep/comm/stop.h"
#include "lockstep/optim/optimizer.h"
#include "tests/multirank/snapshot_program.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::snapshots_state_test {
namespace {

TEST(SnapshotsOfRanks, AStopThatAllHaveAgreedOnSavesWhatBelongsToEach) {
  const TemporaryFolder folder;
  run_ranks(3, [&](const Group& group) {
    Program it(group, folder / "run", {.every = 4});
    std::int64_t rows = 0;
    it.snapshots.add_per_rank("rows", rows);
    it.snapshots.restore();
    it.train(5);
    rows = 100 + group->rank();
    it.train(6);
    rows = 200;  // behind the last step
    if (group->rank() == 1) request_stop(*group, "enough");
    group->barrier().wait();
    EXPECT_EQ(should_stop(*group, StopView::all_ranks), "enough");
  });
  run_ranks(3, [&](const Group& group) {
    Program it(group, folder / "run", {.every = 4});
    std::int64_t rows = 0;
    it.snapshots.add_per_rank("rows", rows);
    const auto restored = it.snapshots.restore();
    ASSERT_TRUE(restored);
    EXPECT_EQ(restored->step, 6);
    EXPECT_EQ(rows, 100 + group->rank());
  });
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

Tensor filled(const Shape& shape, std::uint64_t seed) {
  const Tensor result = Tensor::empty(shape);
  Generator generator(seed);
  for (float& value : result.values<float>()) value = generator.normal();
  return result;
}

// Two networks, as of a GAN, of which the second takes two steps for one of the first's.
Values trained(const Group& group, const fs::path& folder, std::int64_t stop, std::int64_t& from, bool dies) {
  nn::Sequential first{nn::Linear(5, 8), nn::Tanh(), nn::Linear(8, 2)},
      second{nn::Linear(5, 4), nn::Tanh(), nn::Linear(4, 2)};
  first.initialize(1);
  second.initialize(2);
  DistributedDataParallel one(first, group), other(second, group);
  optim::AdamW of_one(one.parameters(), {.lr = 0.01});
  optim::SGD of_other(other.parameters(), {.lr = 0.05, .momentum = 0.9});
  Snapshots snapshots(folder, one, {.every = 4, .rescue = !dies});
  snapshots.add("critic", other);
  snapshots.add("optimizer", of_one);
  snapshots.add("critic_optimizer", of_other);
  if (const auto restored = snapshots.restore()) from = restored->step;
  EXPECT_EQ(other.steps(), 2 * one.steps());
  const Tensor x = filled({6, 5}, 1 + group->rank()), y = filled({6, 2}, 3);
  while (one.steps() < stop) {
    for (int twice = 0; twice < 2; ++twice) {
      other.backward(mse_loss(other(x), y));
      of_other.step();
      of_other.zero_grad();
    }
    if (dies && one.steps() == 5) throw std::runtime_error("this rank dies");
    one.backward(mse_loss(one(x), y));
    of_one.step();
    of_one.zero_grad();
    snapshots.step();
    snapshots.wait();
  }
  Values values = weights_of(first);
  for (auto& [name, numbers] : weights_of(second)) values["critic." + name] = numbers;
  return values;
}

TEST(SnapshotsOfTwoNetworks, GoOnAsOneStateAlsoAfterADeathBetweenTheirUpdates) {
  const TemporaryFolder whole, parts;
  std::int64_t from = -1;
  Values undisturbed, last;
  run_ranks(2, [&](const Group& group) {
    std::int64_t none = 0;
    const Values values = trained(group, whole / "run", 9, none, false);
    if (group->rank() == 0) undisturbed = values;
  });
  // One network has taken a step and the other has not when rank 1 dies: that state is none.
  EXPECT_ANY_THROW(run_ranks(2, [&](const Group& group) {
    std::int64_t none = 0;
    trained(group, parts / "run", 9, none, group->rank() == 1);
  }));
  run_ranks(2, [&](const Group& group) {
    std::int64_t own = -1;
    const Values values = trained(group, parts / "run", 9, own, false);
    if (group->rank() == 0) {
      last = values;
      from = own;
    }
  });
  EXPECT_EQ(from, 4);
  EXPECT_EQ(last, undisturbed);
}

}  // namespace
}  // namespace lockstep::testing::snapshots_state_test
