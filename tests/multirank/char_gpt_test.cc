// SPDX-License-Identifier: Apache-2.0
// The main job's model on 1 to 4 ranks.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "examples/02_char_gpt/gpt.h"
#include "examples/02_char_gpt/text.h"
#include "examples/02_char_gpt/train.h"
#include "lockstep/data/sampler.h"
#include "lockstep/ddp/replica_check.h"
#include "lockstep/train/distributed_data_parallel.h"
#include "tests/multirank/compare.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing::char_gpt_test {
namespace {

using namespace char_gpt;

// A text with something to learn: the order of a made-up alphabet, and words of it.
std::string text() {
  std::string result;
  for (int i = 0; i < 400; ++i)
    result += std::string("abcdefgh").substr(i % 5, 1 + (i * 7) % 4) + (i % 9 ? " " : ".\n");
  return result;
}

constexpr std::int64_t kContext = 16;

struct Job {
  Job() : vocabulary(text()), windows(encode(), kContext, 1) {
    options = {
        .vocabulary = vocabulary.size(), .context = kContext, .layers = 2, .heads = 2, .channels = 32, .dropout = 0.1f};
  }
  Tokens encode() const { return std::make_shared<const std::vector<std::int64_t>>(vocabulary.encode(text())); }
  Gpt model(DeviceId device) const {
    Gpt made(options);
    made.initialize(3);
    made.to(device);
    return made;
  }

  Vocabulary vocabulary;
  Windows windows;
  GptOptions options;
};

// Small enough for at least 4 buckets.
const DdpOptions kDdp{.buckets = {.cap_bytes = 16 << 10, .first_cap_bytes = 8 << 10}, .seed = 5};

// Gradients of one global batch of 10 sequences, with dropout.
Values gradients(int ranks) {
  const Job job;
  Values result;
  run_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
    Gpt model = job.model(group->device());
    DistributedDataParallel ddp(model, group, kDdp);
    const data::GlobalBatchSampler sampler(job.windows.size(), *group, {.global_batch = 10, .seed = 2});
    for (std::int64_t step = 0; step < 3; ++step) {
      const data::Batch batch = job.windows.batch(sampler.batch(step)).to(group->device());
      model.zero_grad();
      ddp.backward(cross_entropy(ddp(batch.x, batch.ids), batch.y));
    }
    if (group->rank() == 0) result = gradients_of(model);
  });
  return result;
}

TEST(CharGpt, GradientsWithDropoutAreEqualAtEveryWorldSize) {
  const Values wanted = gradients(1);
  for (const int ranks : {2, 3, 4}) expect_close(gradients(ranks), wanted, std::to_string(ranks) + " ranks");
}

// Or the test above would compare a dropout that does nothing.
TEST(CharGpt, DropoutChangesGradients) {
  Job job;
  const auto first_gradient = [&](float dropout, std::uint64_t seed) {
    job.options.dropout = dropout;
    Values result;
    run_ranks(1, [&](const std::shared_ptr<ProcessGroup>& group) {
      Gpt model = job.model(group->device());
      DistributedDataParallel ddp(model, group, {.seed = seed});
      const data::Batch batch = job.windows.batch(std::vector<std::int64_t>{1, 2, 3}).to(group->device());
      ddp.backward(cross_entropy(ddp(batch.x, batch.ids), batch.y));
      result = gradients_of(model);
    });
    return result;
  };
  EXPECT_EQ(first_gradient(0.1f, 1), first_gradient(0.1f, 1));
  EXPECT_NE(first_gradient(0.1f, 1), first_gradient(0.1f, 2));
  EXPECT_NE(first_gradient(0.1f, 1), first_gradient(0.0f, 1));
}

TEST(CharGpt, ReplicasHaveTheSameBitsAfterEveryOfTwoHundredSteps) {
  const Job job;
  constexpr int kRanks = 3;
  std::vector<std::vector<std::uint64_t>> hashes(kRanks);
  run_ranks(kRanks, [&](const std::shared_ptr<ProcessGroup>& group) {
    Gpt model = job.model(group->device());
    DistributedDataParallel ddp(model, group, kDdp);
    auto& mine = hashes[static_cast<std::size_t>(group->rank())];
    std::vector<NamedBuffer> buffers;
    for (const auto& [name, tensor] : model.named_parameters()) buffers.push_back({name, tensor.view()});
    // Batches of 7 over 3 ranks: shards of 3, 3 and 1.
    train(ddp, job.windows, {.steps = 200, .batch = 7, .warmup = 5},
          [&](std::int64_t, DistributedDataParallel&) { mine.push_back(check_replicas(*group, buffers)); });
  });
  ASSERT_EQ(hashes[0].size(), 200u);
  // check_replicas has compared them already, or thrown a Mismatch.
  EXPECT_EQ(hashes[1], hashes[0]);
  EXPECT_EQ(hashes[2], hashes[0]);
  EXPECT_EQ(std::set<std::uint64_t>(hashes[0].begin(), hashes[0].end()).size(), 200u) << "weights change in every step";
}

// Dropout, AdamW, clipping and a short last batch, in fixed micro-batches.
TEST(CharGpt, InFixedMicroBatchesHasTheSameBitsAfterThirtyStepsAtAnyNumberOfRanks) {
  const Job job;
  const auto run = [&](int ranks) {
    std::vector<std::uint64_t> hashes;
    run_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      Gpt model = job.model(group->device());
      const TrainOptions options{.steps = 30, .batch = 20, .seed = 5, .warmup = 5, .micro_batches = 8};
      DistributedDataParallel ddp(model, group, ddp_options(options));
      train(ddp, job.windows, options, [&](std::int64_t, DistributedDataParallel&) {
        if (group->rank() == 0) hashes.push_back(hash_of(model));
      });
    });
    return hashes;
  };
  const std::vector<std::uint64_t> alone = run(1);
  ASSERT_EQ(alone.size(), 30u);
  for (const int ranks : {2, 3, 5, 8}) EXPECT_EQ(run(ranks), alone) << ranks << " ranks";
}

// By order, not by time: bucket 0's all-reduce is started before the last gradient is ready, in every step.
TEST(CharGpt, CommunicationBeginsBeforeBackwardEndsInEveryStepOnEveryRank) {
  const Job job;
  for (const int ranks : {1, 2, 4}) {
    run_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      Gpt model = job.model(group->device());
      DistributedDataParallel ddp(model, group, kDdp);
      std::int64_t seen = 0;
      train(ddp, job.windows, {.steps = 10, .batch = 8, .warmup = 2}, [&](std::int64_t step, DistributedDataParallel&) {
        const trace::StepRecord& record = ddp.last_step();
        ASSERT_EQ(record.step, step);
        ASSERT_GE(record.buckets.size(), 4u);
        ASSERT_EQ(record.gradients_ready, static_cast<int>(ddp.parameters().size()));
        for (std::size_t bucket = 0; bucket + 1 < record.buckets.size(); ++bucket) {
          EXPECT_LT(record.buckets[bucket].gradients_ready, record.gradients_ready)
              << "rank " << group->rank() << ", step " << step << ", bucket " << bucket;
        }
        EXPECT_LE(record.buckets[0].launched, record.last_gradient_ready);
        ++seen;
      });
      EXPECT_EQ(seen, 10);
    });
  }
}

TEST(CharGpt, ValidationLossIsThatOfOneRank) {
  const Job job;
  const Windows held_out(job.encode(), kContext, kContext);
  std::vector<double> losses;
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      Gpt model = job.model(group->device());
      DistributedDataParallel ddp(model, group, kDdp);
      train(ddp, job.windows, {.steps = 30, .batch = 8, .warmup = 2}, {});
      EXPECT_TRUE(model.is_training());
      const double loss = evaluate(model, held_out, *group);
      EXPECT_TRUE(model.is_training());
      if (group->rank() == 0) losses.push_back(loss);
    });
  }
  EXPECT_NEAR(losses[1], losses[0], 1e-4 * losses[0]);
  EXPECT_NEAR(losses[2], losses[0], 1e-4 * losses[0]);
}

}  // namespace
}  // namespace lockstep::testing::char_gpt_test
