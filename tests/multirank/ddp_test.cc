// SPDX-License-Identifier: Apache-2.0
// N ranks compute what one process computes on the global batch, on the CPU and on GPUs that are fakes.
#include <gtest/gtest.h>

#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/tensor/batch.h"
#include "lockstep/nn/nn.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/distributed_data_parallel.h"
#include "tests/multirank/compare.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing::ddp_test {
namespace {

data::TensorDataset random_dataset(std::int64_t length) {
  const Tensor x = Tensor::empty({length, 5});
  const Tensor y = Tensor::empty({length, 2});
  Generator generator(1);
  for (float& value : x.values<float>()) value = generator.normal();
  for (float& value : y.values<float>()) value = generator.normal();
  return data::TensorDataset(x, y);
}

nn::Sequential make_model(std::uint64_t seed) {
  nn::Sequential model{nn::Linear(5, 16), nn::Tanh(), nn::Linear(16, 2)};
  model.initialize(seed);
  return model;
}

// Trains two epochs of 100 samples in global batches of 30 and returns this rank's weights.
Values train_on(const std::shared_ptr<ProcessGroup>& group, std::uint64_t seed, int micro_batches = 1) {
  // Ranks begin with other weights: rank 0's must reach them.
  nn::Sequential model = make_model(seed + static_cast<std::uint64_t>(group->rank()));
  model.to(group->device());
  DistributedDataParallel ddp(model, group);
  optim::SGD optimizer(ddp.parameters(), {.lr = 0.1, .momentum = 0.9});
  data::DataLoader loader(random_dataset(100), data::GlobalBatchSampler(100, *group, {.global_batch = 30}),
                          {.workers = 1});
  for (int epoch = 0; epoch < 2; ++epoch) {
    loader.set_epoch(epoch);
    for (const data::Batch& batch : loader) {
      const auto& [x, y, ids] = batch.to(group->device());
      for (int part = 0; part < micro_batches; ++part) {
        const data::RowRange range = data::chunk(x.size(0), part, micro_batches);
        const Tensor part_x = x.view_rows(range.begin, range.begin + range.count);
        const Tensor part_y = y.view_rows(range.begin, range.begin + range.count);
        const auto local = ddp.no_sync(part + 1 < micro_batches);
        ddp.backward(mse_loss(ddp(part_x), part_y));
      }
      EXPECT_EQ(ddp.last_weight(), ddp.steps() % 4 == 0 ? 10 : 30);
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  EXPECT_EQ(ddp.steps(), 8);
  return weights_of(model);
}

Values train(int ranks, int micro_batches = 1) {
  Values result;
  run_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
    const Values own = train_on(group, 7, micro_batches);
    if (group->rank() == 0) result = own;
  });
  return result;
}

// 30 over 8 is 4 x 7 + 2, and the last batch, 10 over 8, leaves three ranks without a row.
TEST(Ddp, WeightsAfterTrainingAreThoseOfOneRankWithUnevenAndEmptyShards) {
  const Values wanted = train(1);
  for (const int ranks : {2, 3, 4, 8}) expect_close(train(ranks), wanted, std::to_string(ranks) + " ranks");
}

// Two models side by side, each on a pair of ranks; every pair has the bits of a job of two.
TEST(Ddp, TrainsOverAGroupWithinTheJobs) {
  const Values of_two = train(2);
  std::vector<Values> of_pairs(4);
  run_ranks(4, [&](const std::shared_ptr<ProcessGroup>& group) {
    const int pair = group->rank() % 2;
    of_pairs[static_cast<std::size_t>(group->rank())] = train_on(group->split(pair), pair == 0 ? 7 : 100);
    group->barrier().wait();
  });
  EXPECT_EQ(of_pairs[0], of_two);
  EXPECT_EQ(of_pairs[2], of_two);
  EXPECT_EQ(of_pairs[1], of_pairs[3]);
  EXPECT_NE(of_pairs[1], of_two) << "another model";
}

TEST(Ddp, MicroBatchesOfUnevenSizeChangeNothing) {
  const Values wanted = train(1);
  expect_close(train(1, 4), wanted, "1 rank, 4 micro-batches");
  expect_close(train(3, 3), wanted, "3 ranks, 3 micro-batches");
}

}  // namespace
}  // namespace lockstep::testing::ddp_test
