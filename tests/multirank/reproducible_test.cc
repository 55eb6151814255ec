// SPDX-License-Identifier: Apache-2.0
// lockstep's DistributedDataParallel with fixed micro-batches: the same bits at any number of ranks, over stops and
// resizes, and what can't keep that is refused.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/intra_op_threads.h"
#include "lockstep/metrics/metrics.h"
#include "tests/multirank/snapshot_program.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::reproducible_test {
namespace {

constexpr int kMicroBatches = 8;
constexpr std::int64_t kRowsOfStep = 13;  // micro-batches of 2 rows, of which the seventh has one and the eighth none

struct Settings {
  int ranks = 1;
  int micro_batches = kMicroBatches;
  BucketOptions buckets = {};
  bool overlap = true;
  Loss loss = Loss::mean;
  int workers = 1;
};

// What a run leaves behind, bit by bit.
struct Record {
  std::vector<std::uint64_t> weights;  // a hash after each step
  std::vector<double> losses;
  std::vector<double> norms;
  bool operator==(const Record&) const = default;
};

// A program with dropout, AdamW and clipped gradients, over a dataset that the batch does not divide.
class Job {
 public:
  Job(const Group& group, const Settings& settings)
      : settings_(settings),
        group_(group),
        ddp_(model_, group,
             {.buckets = settings.buckets,
              .loss = settings.loss,
              .overlap = settings.overlap,
              .reproducible = {.micro_batches = settings.micro_batches, .global_batch = kRowsOfStep},
              .seed = 5}),
        loader_(
            dataset(),
            data::GlobalBatchSampler(kSamples, *group,
                                     {.global_batch = kRowsOfStep, .seed = 3, .micro_batches = settings.micro_batches}),
            {.workers = settings.workers}) {}

  // Until `stop` steps are done.
  void train(std::int64_t stop, const std::function<void()>& after_step = {}) {
    ddp_.watch(loader_);
    for (std::int64_t epoch = loader_.epoch(); ddp_.steps() < stop; ++epoch) {
      loader_.set_epoch(epoch);
      for (const data::Batch& batch : loader_) {
        ddp_.backward(batch, [&](const data::Batch& micro_batch) {
          const Tensor loss = mse_loss(ddp_(micro_batch.x, micro_batch.ids), micro_batch.y);
          return settings_.loss == Loss::mean ? loss : scale(loss, static_cast<float>(micro_batch.size()));
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
  Settings settings_;
  Group group_;
  nn::Sequential model_ = Program::make_model(7 + static_cast<std::uint64_t>(group_->rank()));
  DistributedDataParallel ddp_;
  optim::AdamW optimizer_{ddp_.parameters(), {.lr = 0.01, .weight_decay = 0.1}};
  data::DataLoader<data::Batch> loader_;
  Record record_;
};

Record record_of(const Settings& settings, std::int64_t steps = 12) {
  Record record;
  run_ranks(settings.ranks, [&](const Group& group) {
    Job job(group, settings);
    job.train(steps);
    EXPECT_NO_THROW(job.ddp().check_replicas());
    if (group->rank() == 0) record = job.record();
  });
  return record;
}

TEST(Reproducible, AnyNumberOfRanksHasTheSameBits) {
  const Record alone = record_of({.ranks = 1});
  ASSERT_EQ(alone.weights.size(), 12u);
  EXPECT_EQ(std::set<std::uint64_t>(alone.weights.begin(), alone.weights.end()).size(), 12u);
  for (const int ranks : {2, 3, 4, 5, 6, 7, 8}) EXPECT_EQ(record_of({.ranks = ranks}), alone) << ranks << " ranks";
}

// Else the test above would hold of a program that is insensitive to the order of its sums.
TEST(Reproducible, AnotherNumberOfShardsIsAnotherProgram) {
  EXPECT_NE(record_of({.ranks = 2, .micro_batches = 5}).weights, record_of({.ranks = 2}).weights);
}

TEST(Reproducible, BucketsOverlapAndLoaderThreadsChangeNothing) {
  const Record alone = record_of({.ranks = 1});
  const BucketOptions many{.cap_bytes = 0, .first_cap_bytes = 0};
  for (const int ranks : {2, 3}) {
    EXPECT_EQ(record_of({.ranks = ranks, .buckets = many}), alone) << ranks;
    EXPECT_EQ(record_of({.ranks = ranks, .overlap = false}), alone) << ranks;
    EXPECT_EQ(record_of({.ranks = ranks, .workers = 0}), alone) << ranks;
  }
}

TEST(Reproducible, ALossThatIsASumHasTheSameBits) {
  const Record alone = record_of({.ranks = 1, .loss = Loss::sum});
  for (const int ranks : {2, 3, 8}) EXPECT_EQ(record_of({.ranks = ranks, .loss = Loss::sum}), alone) << ranks;
}

// Snapshots hold weights, the optimizer's state and the place in the data; bits are those of a run that never stopped.
TEST(Reproducible, ARunThatStopsAndGoesOnAtOtherNumbersOfRanksHasTheSameBits) {
  constexpr std::int64_t kLast = 30;
  const Record undisturbed = record_of({.ranks = 1}, kLast);
  const TemporaryFolder folder;
  std::int64_t done = 0;
  for (const auto& [ranks, stop] :
       std::vector<std::pair<int, std::int64_t>>{{4, 11}, {3, 17}, {6, 18}, {1, 24}, {5, kLast}}) {
    Record record;
    run_ranks(ranks, [&, last = stop](const Group& group) {
      Job job(group, {.ranks = group->size()});
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

TEST(Reproducible, WeightsOfTheProgramsOwnCount) {
  const auto gradients = [](int ranks) {
    Values values;
    run_ranks(ranks, [&](const Group& group) {
      nn::Sequential model = Program::make_model(1);
      DistributedDataParallel ddp(model, group, {.reproducible = {.micro_batches = 6, .global_batch = 18}});
      const data::GlobalBatchSampler sampler(kSamples, *group, {.global_batch = 18, .micro_batches = 6});
      ddp.backward(dataset().batch(sampler.batch(0)), [&](const data::Batch& micro_batch) {
        const Tensor loss = mse_loss(ddp(micro_batch.x, micro_batch.ids), micro_batch.y);
        ddp.set_weight(1 + micro_batch.ids.front() % 5);
        return loss;
      });
      if (group->rank() == 0) values = gradients_of(model);
    });
    return values;
  };
  const Values alone = gradients(1);
  for (const int ranks : {2, 3, 4, 6}) EXPECT_EQ(gradients(ranks), alone) << ranks;
}

// Rank 1 has micro-batches 2, 3 and 4, whose sums are two: that of the first two, and the third.
TEST(Reproducible, ANanInAnyShardIsNamedBeforeItIsInTheWeights) {
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
    const std::string text = error_of<Error>([&] {
      run_ranks(3, [&](const Group& group) {
        nn::Sequential model = Program::make_model(1);
        DistributedDataParallel ddp(
            model, group, {.not_finite = NotFinite::raise, .reproducible = {.micro_batches = 8, .global_batch = 16}});
        const data::GlobalBatchSampler sampler(kSamples, *group, {.global_batch = 16, .micro_batches = 8});
        int micro_batches = 0;
        ddp.backward(dataset().batch(sampler.batch(0)), [&](const data::Batch& rows) {
          const Tensor loss = mse_loss(ddp(rows.x, rows.ids), rows.y);
          return group->rank() == 1 && micro_batches++ == micro_batch
                     ? scale(loss, std::numeric_limits<float>::quiet_NaN())
                     : loss;
        });
      });
    });
    EXPECT_NE(text.find("NaN in rank 1's gradient of '"), std::string::npos) << micro_batch << ": " << text;
    EXPECT_NE(text.find("in step 0"), std::string::npos) << micro_batch << ": " << text;
  }
}

// Of two rows in a micro-batch one counts, or both, so that the weights of some ranks are as many as their rows.
TEST(Reproducible, WeightsThatAreRowsByChanceAreTheProgramsOwnToo) {
  run_ranks(2, [&](const Group& group) {
    nn::Sequential model = Program::make_model(1);
    DistributedDataParallel ddp(model, group, {.reproducible = {.micro_batches = 4, .global_batch = 8}});
    const data::GlobalBatchSampler sampler(kSamples, *group, {.global_batch = 8, .micro_batches = 4});
    const std::int64_t counted = group->rank() == 0 ? 2 : 1;
    ddp.backward(dataset().batch(sampler.batch(0)), [&](const data::Batch& micro_batch) {
      const Tensor loss = mse_loss(ddp(micro_batch.x, micro_batch.ids), micro_batch.y);
      ddp.set_weight(counted);
      return loss;
    });
    EXPECT_EQ(ddp.last_weight(), 6);
  });
}

TEST(Reproducible, AStepWithoutDataNeedsNoWeight) {
  run_ranks(2, [&](const Group& group) {
    nn::Sequential model = Program::make_model(1);
    DistributedDataParallel ddp(model, group, {.reproducible = {.micro_batches = 4, .global_batch = 8}});
    ddp.set_weight(4);
    ddp.step_without_data();
    EXPECT_EQ(ddp.last_weight(), 0);
  });
}

TEST(Reproducible, AWeightForAllMicroBatchesTogetherIsRefused) {
  run_ranks(1, [&](const Group& group) {
    nn::Sequential model = Program::make_model(1);
    DistributedDataParallel ddp(model, group, {.reproducible = {.micro_batches = 4, .global_batch = 8}});
    const data::GlobalBatchSampler sampler(kSamples, *group, {.global_batch = 8, .micro_batches = 4});
    ddp.set_weight(4);
    const std::string told = error_of<InvalidArgument>([&] {
      ddp.backward(dataset().batch(sampler.batch(0)), [&](const data::Batch& micro_batch) {
        return mse_loss(ddp(micro_batch.x, micro_batch.ids), micro_batch.y);
      });
    });
    EXPECT_NE(told.find("set_weight(4) was called before step 0 of 4 fixed micro-batches"), std::string::npos) << told;
  });
}

TEST(Reproducible, AForwardOfOtherRowsThanItsMicroBatchIsRefused) {
  run_ranks(1, [&](const Group& group) {
    nn::Sequential model = Program::make_model(1);
    DistributedDataParallel ddp(model, group, {.reproducible = {.micro_batches = 4, .global_batch = 8}});
    const data::GlobalBatchSampler sampler(kSamples, *group, {.global_batch = 8, .micro_batches = 4});
    const data::Batch batch = dataset().batch(sampler.batch(0));
    const std::string told = error_of<InvalidArgument>(
        [&] { ddp.backward(batch, [&](const data::Batch&) { return mse_loss(ddp(batch.x, batch.ids), batch.y); }); });
    EXPECT_NE(told.find("the forward of fixed micro-batch 0 had 8 rows, but the micro-batch is rows 0 to 2"),
              std::string::npos)
        << told;
  });
}

TEST(Reproducible, AStepWithoutDataIsOneOfAllRanks) {
  run_ranks(3, [](const Group& group) {
    nn::Sequential model = Program::make_model(1);
    DistributedDataParallel ddp(model, group, {.reproducible = {.micro_batches = 4, .global_batch = 8}});
    // Two rows, of micro-batch 0: rank 0's.
    const data::Batch batch = dataset().batch(std::vector<std::int64_t>{3, 4});
    if (group->rank() == 0) {
      ddp.backward(batch, [&](const data::Batch& micro_batch) {
        return mse_loss(ddp(micro_batch.x, micro_batch.ids), micro_batch.y);
      });
    } else {
      ddp.step_without_data();
    }
    EXPECT_EQ(ddp.last_weight(), 2);
    EXPECT_EQ(ddp.steps(), 1);
  });
}

TEST(Reproducible, WithoutShardsTheSameLoopIsOneBackward) {
  run_ranks(2, [](const Group& group) {
    nn::Sequential model = Program::make_model(1);
    DistributedDataParallel ddp(model, group);
    int calls = 0;
    ddp.backward(dataset().batch(std::vector<std::int64_t>{1, 2, 3}), [&](const data::Batch& batch) {
      ++calls;
      return mse_loss(ddp(batch.x, batch.ids), batch.y);
    });
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(ddp.last_weight(), 6);
  });
}

TEST(Reproducible, ComputesOnAFixedNumberOfThreads) {
  run_ranks(1, [](const Group& group) {
    set_intra_op_threads(2);
    nn::Sequential model = Program::make_model(1);
    DistributedDataParallel ddp(model, group, {.reproducible = {.micro_batches = 4, .global_batch = 8, .threads = 1}});
    EXPECT_EQ(intra_op_threads(), 1);
  });
}

// What a rank throws where a program misuses its micro-batches.
std::string misuse(int ranks, const std::function<void(DistributedDataParallel&, const Group&)>& body,
                   const DdpOptions& options = {.reproducible = {.micro_batches = 4, .global_batch = 8}}) {
  return error_of<InvalidArgument>([&] {
    run_ranks(ranks, [&](const Group& group) {
      nn::Sequential model = Program::make_model(1);
      DistributedDataParallel ddp(model, group, options);
      body(ddp, group);
    });
  });
}
Tensor loss_of(DistributedDataParallel& ddp, const data::Batch& batch) {
  return mse_loss(ddp(batch.x, batch.ids), batch.y);
}
data::Batch rows(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> ids;
  for (std::int64_t id = begin; id < end; ++id) ids.push_back(id);
  return dataset().batch(ids);
}

TEST(Reproducible, RefusesALossOfManyShards) {
  EXPECT_NE(misuse(1, [](DistributedDataParallel& ddp, const Group&) { ddp.backward(loss_of(ddp, rows(0, 8))); })
                .find("of 4 fixed micro-batches, each of which has its own loss: call ddp.backward(batch, loss_of)"),
            std::string::npos);
}

TEST(Reproducible, RefusesNoSync) {
  const std::string told = misuse(1, [](DistributedDataParallel& ddp, const Group&) {
    const NoSync partial = ddp.no_sync();
    ddp.backward(rows(0, 8), [&](const data::Batch& micro_batch) { return loss_of(ddp, micro_batch); });
  });
  EXPECT_NE(told.find("no_sync() was used in step 0, but a step of 4 fixed micro-batches adds up gradients by itself"),
            std::string::npos)
      << told;
}

TEST(Reproducible, RefusesGradientsThatNobodyHasCleared) {
  const std::string told = misuse(1, [](DistributedDataParallel& ddp, const Group&) {
    for (int i = 0; i < 2; ++i) {
      ddp.backward(rows(0, 8), [&](const data::Batch& micro_batch) { return loss_of(ddp, micro_batch); });
    }
  });
  EXPECT_NE(
      told.find("still has the gradient of an earlier step at the first fixed micro-batch of a step; call zero_grad()"),
      std::string::npos)
      << told;
}

TEST(Reproducible, RefusesRowsThatAreNotDealtAsShards) {
  // As chunk() deals 5 rows: 3 and 2. Of micro-batches of 2 rows rank 0 has 4, rank 1 one.
  const std::string told = misuse(2, [](DistributedDataParallel& ddp, const Group& group) {
    const data::Batch batch = group->rank() == 0 ? rows(0, 3) : rows(3, 5);
    ddp.backward(batch, [&](const data::Batch& micro_batch) { return loss_of(ddp, micro_batch); });
  });
  EXPECT_NE(told.find("of the step's 5 rows, but fixed micro-batches of 2 rows give it"), std::string::npos) << told;
  EXPECT_NE(misuse(1,
                   [](DistributedDataParallel& ddp, const Group&) {
                     ddp.backward(rows(0, 9),
                                  [&](const data::Batch& micro_batch) { return loss_of(ddp, micro_batch); });
                   })
                .find("rank 0 of 1 has 9 rows, but its 4 fixed micro-batches of 2 rows hold only 8"),
            std::string::npos);
}

TEST(Reproducible, AnExceptionBetweenShardsFailsTheGroup) {
  std::string other;
  const auto thrown = error_of<Error>([&] {
    run_ranks(2, [&](const Group& group) {
      nn::Sequential model = Program::make_model(1);
      DistributedDataParallel ddp(model, group, {.reproducible = {.micro_batches = 4, .global_batch = 8}});
      const data::Batch batch = group->rank() == 0 ? rows(0, 4) : rows(4, 8);
      int calls = 0;
      try {
        ddp.backward(batch, [&](const data::Batch& micro_batch) {
          if (group->rank() == 1 && ++calls == 2) throw Error("no more");
          return loss_of(ddp, micro_batch);
        });
      } catch (const PeerLost& error) {
        other = error.what();
        throw;
      }
    });
  });
  EXPECT_NE(thrown.find("no more"), std::string::npos) << thrown;
  EXPECT_NE(other.find("failed in the backward of step 0: no more"), std::string::npos) << other;
}

}  // namespace
}  // namespace lockstep::testing::reproducible_test
