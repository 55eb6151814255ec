// SPDX-License-Identifier: Apache-2.0
// lockstep's DistributedDataParallel with fixed micro-batches: a program with all that is random or has a state, over
// stops and resizes. The rest is in reproducible_contract.h.
#include <functional>
#include <set>
#include <vector>

#include "lockstep/base/intra_op_threads.h"
#include "tests/multirank/snapshot_program.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::reproducible_test {
namespace {

// Micro-batches of 2 rows, of which the seventh has one and the eighth none; the batch does not divide the dataset.
const Reproducible kFixed{.micro_batches = 8, .global_batch = 13};

// What a run does from step `from` to step `until`, bit by bit.
struct Record {
  std::vector<std::uint64_t> weights;  // a hash after each step
  std::vector<double> losses;
};
Record train(int ranks, const fs::path& folder, std::int64_t from, std::int64_t until) {
  Record record;
  run_ranks(ranks, [&](const Group& group) {
    Program it(group, folder, {.every = 1}, Shard::none, kFixed);
    const auto restored = it.snapshots.restore();
    EXPECT_EQ(restored ? restored->step : 0, from);
    it.behind_step = [&](std::int64_t) {
      if (group->rank() != 0) return;
      record.weights.push_back(hash_of(it.model));
      record.losses.push_back(it.ddp.last_loss().value());
    };
    it.train(until);
  });
  return record;
}

// Snapshots hold weights, the optimizer's state and the place in the data; bits are those of a run that never stopped.
TEST(Reproducible, ARunThatStopsAndGoesOnAtOtherNumbersOfRanksHasTheSameBits) {
  const TemporaryFolder folder;
  const Record undisturbed = train(1, folder / "whole", 0, kSteps);
  EXPECT_EQ(std::set<std::uint64_t>(undisturbed.weights.begin(), undisturbed.weights.end()).size(), kSteps);
  Record parts;
  for (const auto& [ranks, stop] : {std::pair<int, std::int64_t>{4, 4}, {3, 6}, {6, 7}, {1, 9}, {8, 11}, {5, kSteps}}) {
    const Record part = train(ranks, folder / "parts", std::ssize(parts.weights), stop);
    parts.weights.insert(parts.weights.end(), part.weights.begin(), part.weights.end());
    parts.losses.insert(parts.losses.end(), part.losses.begin(), part.losses.end());
  }
  EXPECT_EQ(parts.weights, undisturbed.weights);
  EXPECT_EQ(parts.losses, undisturbed.losses);
}

TEST(Reproducible, ComputesOnAFixedNumberOfThreadsAndRefusesALossOfManyMicroBatches) {
  run_ranks(1, [](const Group& group) {
    set_intra_op_threads(2);
    nn::Sequential model = Program::make_model(1);
    DistributedDataParallel ddp(model, group, {.reproducible = {.micro_batches = 4, .global_batch = 8, .threads = 1}});
    EXPECT_EQ(intra_op_threads(), 1);
    const data::Batch rows = dataset().batch(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
    expect_text(error_of([&] { ddp.backward(mse_loss(ddp(rows.x, rows.ids), rows.y)); }),
                {"of 4 fixed micro-batches, each of which has its own loss: call ddp.backward(batch, loss_of)"});
  });
}

}  // namespace
}  // namespace lockstep::testing::reproducible_test
