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

constexpr int kMicroBatches = 8;
constexpr std::int64_t kRowsOfStep = 13;  // micro-batches of 2 rows, of which the seventh has one and the eighth none

// What a run leaves behind, bit by bit.
struct Record {
  std::vector<std::uint64_t> weights;  // a hash after each step
  std::vector<double> losses;
  std::vector<double> norms;
};

// A program with dropout, AdamW and clipped gradients, over a dataset that the batch does not divide.
class Job {
 public:
  explicit Job(const Group& group)
      : group_(group),
        ddp_(model_, group, {.reproducible = {.micro_batches = kMicroBatches, .global_batch = kRowsOfStep}, .seed = 5}),
        loader_(dataset(),
                data::GlobalBatchSampler(kSamples, *group,
                                         {.global_batch = kRowsOfStep, .seed = 3, .micro_batches = kMicroBatches}),
                {.workers = group->rank() % 2}) {}

  // Until `stop` steps are done.
  void train(std::int64_t stop, const std::function<void()>& after_step = {}) {
    ddp_.watch(loader_);
    for (std::int64_t epoch = loader_.epoch(); ddp_.steps() < stop; ++epoch) {
      loader_.set_epoch(epoch);
      for (const data::Batch& batch : loader_) {
        ddp_.backward(batch, [&](const data::Batch& micro_batch) {
          return mse_loss(ddp_(micro_batch.x, micro_batch.ids), micro_batch.y);
        });
        record_.norms.push_back(optim::clip_grad_norm(ddp_.parameters(), 0.5));
        optimizer_.step();
        optimizer_.zero_grad();
        record_.weights.push_back(hash_of(model_));
        record_.losses.push_back(ddp_.last_loss().value());
        if (after_step) after_step();
        if (ddp_.steps() == stop) return;
      }
    }
  }
  const Record& record() const { return record_; }

  DistributedDataParallel& ddp() { return ddp_; }
  optim::AdamW& optimizer() { return optimizer_; }
  data::DataLoader<data::Batch>& loader() { return loader_; }

 private:
  Group group_;
  nn::Sequential model_ = Program::make_model(7 + static_cast<std::uint64_t>(group_->rank()));
  DistributedDataParallel ddp_;
  optim::AdamW optimizer_{ddp_.parameters(), {.lr = 0.01, .weight_decay = 0.1}};
  data::DataLoader<data::Batch> loader_;
  Record record_;
};

// Snapshots hold weights, the optimizer's state and the place in the data; bits are those of a run that never stopped.
TEST(Reproducible, ARunThatStopsAndGoesOnAtOtherNumbersOfRanksHasTheSameBits) {
  constexpr std::int64_t kLast = 30;
  Record undisturbed;
  run_ranks(1, [&](const Group& group) {
    Job job(group);
    job.train(kLast);
    undisturbed = job.record();
  });
  EXPECT_EQ(std::set<std::uint64_t>(undisturbed.weights.begin(), undisturbed.weights.end()).size(), kLast);
  const TemporaryFolder folder;
  std::int64_t done = 0;
  for (const auto& [ranks, stop] :
       std::vector<std::pair<int, std::int64_t>>{{4, 11}, {3, 17}, {6, 18}, {1, 24}, {8, 26}, {5, kLast}}) {
    Record record;
    run_ranks(ranks, [&, last = stop](const Group& group) {
      Job job(group);
      Snapshots snapshots(folder, job.ddp(), {.every = 1});
      snapshots.add("optimizer", job.optimizer());
      snapshots.add("data", job.loader());
      const auto restored = snapshots.restore();
      EXPECT_EQ(restored ? restored->step : 0, done);
      job.train(last, [&] {
        snapshots.step();
        snapshots.wait();
      });
      if (group->rank() == 0) record = job.record();
    });
    ASSERT_EQ(record.weights.size(), static_cast<std::size_t>(stop - done)) << ranks << " ranks";
    for (std::int64_t step = done; step < stop; ++step) {
      const auto at = static_cast<std::size_t>(step), here = static_cast<std::size_t>(step - done);
      EXPECT_EQ(record.weights[here], undisturbed.weights[at]) << ranks << " ranks, step " << step;
      EXPECT_EQ(record.losses[here], undisturbed.losses[at]) << ranks << " ranks, step " << step;
      EXPECT_EQ(record.norms[here], undisturbed.norms[at]) << ranks << " ranks, step " << step;
    }
    done = stop;
  }
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
