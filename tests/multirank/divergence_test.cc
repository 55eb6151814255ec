// SPDX-License-Identifier: Apache-2.0
// Replicas that come apart: every rank hears of it in the next step, or at the next digest, and nobody trains on.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/tensor/batch.h"
#include "lockstep/job/cause.h"
#include "lockstep/nn/nn.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/distributed_data_parallel.h"
#include "lockstep/train/weights.h"
#include "runtime/ddp/equality/data_check.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/support/rank_threads.h"
#include "tests/support/thrown_on.h"

namespace lockstep::testing::divergence_test {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

nn::Sequential make_model() {
  nn::Sequential model{nn::Linear(5, 4), nn::Tanh(), nn::Linear(4, 2)};
  model.initialize(3);
  return model;
}

// What each rank was told, which must be the same.
std::string mismatch_of_all(int ranks, const RankBody& train) {
  const auto thrown = thrown_on(ranks, train);
  for (const auto& error : thrown) {
    expect_thrown<Mismatch>(error, {.kind = Cause::Kind::mismatch});
    EXPECT_EQ(text_of(error), text_of(thrown[0]));
  }
  return text_of(thrown[0]);
}

void backward(DistributedDataParallel& ddp) {
  const Tensor x = Tensor::full({3, 5}, 0.5f + static_cast<float>(ddp.group()->rank()));
  ddp.backward(mse_loss(ddp(x), Tensor::zeros({3, 2})));
}

// Beside the parameters nothing need be equal, and rank 0 alone reads the file.
TEST(Divergence, LoadingWeightsForAllIsNone) {
  const auto file = std::filesystem::temp_directory_path() / "lockstep-divergence-test.safetensors";
  save_weights(file, make_model());
  run_ranks(3, [&](const Group& group) {
    nn::Sequential model = make_model();
    DistributedDataParallel ddp(model, group, {.compare_every = 3});
    optim::SGD optimizer(ddp.parameters(), {.lr = 0.1});
    for (int step = 0; step < 10; ++step) {
      if (step == 4) load_weights(file, model, *group);
      // The same, and on one rank more often.
      if (step == 6 && group->rank() == 2) ddp.parameters()[0].copy_from(ddp.parameters()[0].clone());
      backward(ddp);
      optimizer.step();
    }
    EXPECT_EQ(ddp.steps(), 10);
  });
  std::filesystem::remove(file);
}

struct Reads {
  std::int64_t length = 10;
  std::uint64_t seed = 1;
  std::int64_t batch_size = 4;
  bool drop_last = false;
  std::int64_t last_epoch = 2;
  bool is_watched = true;
};

data::DataLoader<data::Batch> loader_of(const Reads& reads, const ProcessGroup& group) {
  return data::DataLoader(
      data::TensorDataset(Tensor::full({reads.length, 5}, 0.5f)),
      data::GlobalBatchSampler(reads.length, group,
                               {.global_batch = reads.batch_size, .seed = reads.seed, .drop_last = reads.drop_last}),
      {.workers = 1});
}

TEST(DataDivergence, NamesWhatTheRanksReadAndWho) {
  struct Case {
    const char* what;
    Reads of_rank1;
  };
  for (const Case& c :
       {Case{"seed", {.seed = 7}}, Case{"length", {.length = 11}}, Case{"length and seed", {.length = 11, .seed = 2}},
        Case{"batch size", {.batch_size = 5}}, Case{"remainder", {.drop_last = true}},
        Case{"epoch, from where it begins", {.last_epoch = 1}}, Case{"not watched", {.is_watched = false}}}) {
    const std::string text = mismatch_of_all(3, [&](const Group& group) {
      const Reads reads = group->rank() == 1 ? c.of_rank1 : Reads();
      nn::Sequential model = make_model();
      DistributedDataParallel ddp(model, group);
      auto loader = loader_of(reads, *group);
      if (reads.is_watched) ddp.watch(loader);
      for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        loader.set_epoch(std::min(epoch, reads.last_epoch));
        for (const data::Batch& batch : loader) {
          ddp.backward(mse_loss(ddp(batch.x), Tensor::zeros({batch.x.size(0), 2})));
        }
      }
    });
    expect_message("ddp", c.what, text);
  }
}

// As on a device, where a step's note is known two steps of the same model later: by then all ranks may be in that
// model.
TEST(DataDivergence, OfModelsThatAreJudgedLateIsNotSaidOfTheData) {
  const std::string text = mismatch_of_all(2, [](const Group& group) {
    DataCheck first(group), second(group);
    (group->rank() == 0 ? first : second).digest(0);
    NotedStep noted{.step = 0};
    noted.of_all.data = 0;  // the ranks' differ
    first.judge(noted);
  });
  expect_message("ddp", "different models", text);
}

TEST(DataDivergence, ASamplerOfAnotherRankOrNumberOfRanksIsRefused) {
  run_ranks(2, [](const Group& group) {
    nn::Sequential model = make_model();
    DistributedDataParallel ddp(model, group);
    const auto watch = [&](int rank, int world) {
      ddp.watch(data::DataLoader(data::TensorDataset(Tensor::full({10, 5}, 0.5f)),
                                 data::GlobalBatchSampler(10, rank, world, {.global_batch = 4})));
    };
    const auto refusal_of = [&](int rank, int world) { return error_of<InvalidArgument>([&] { watch(rank, world); }); };
    const std::string rank = std::to_string(group->rank());
    expect_message("ddp", "another rank's, on rank " + rank, refusal_of(1 - group->rank(), 2));
    expect_message("ddp", "of another number of ranks, on rank " + rank, refusal_of(0, 1));
    EXPECT_NO_THROW(watch(group->rank(), 2));
  });
}

TEST(DataDivergence, IsNoneWhereAllGoOnFromOnePlace) {
  run_ranks(3, [](const Group& group) {
    nn::Sequential model = make_model();
    DistributedDataParallel ddp(model, group);
    auto loader = loader_of({.length = 40}, *group);
    loader.resume({.length = 40, .seed = 1, .order = loader.sampler().order().digest(), .epoch = 3, .consumed = 16});
    ddp.watch(loader);
    for (const data::Batch& batch : loader) ddp.backward(mse_loss(ddp(batch.x), Tensor::zeros({batch.x.size(0), 2})));
    EXPECT_EQ(ddp.steps(), 6);
  });
}

TEST(Divergence, WhatIsWrittenToATensorCountsHoweverItIsReached) {
  const Tensor tensor = Tensor::zeros({4, 2});
  std::uint64_t before = tensor.version();
  const auto writes = [&] { return tensor.version() - std::exchange(before, tensor.version()); };
  tensor.fill(1);
  EXPECT_EQ(writes(), 1u);
  tensor.zero();
  EXPECT_EQ(writes(), 1u);
  tensor.copy_from(tensor.clone());
  EXPECT_EQ(writes(), 1u);
  tensor.view_rows(1, 2).fill(3);
  EXPECT_EQ(writes(), 1u) << "through a view";
  tensor.mark_written();
  EXPECT_EQ(writes(), 1u);
  tensor.to_vector();
  tensor.values<float>()[0] = 1;
  EXPECT_EQ(writes(), 0u);
}

}  // namespace
}  // namespace lockstep::testing::divergence_test
