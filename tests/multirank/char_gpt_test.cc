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

// Gradients of one global batch of 10 sequences.
Values gradients(int ranks, float dropout = 0.1f, std::uint64_t seed = 5) {
  Job job;
  job.options.dropout = dropout;
  DdpOptions options = kDdp;
  options.seed = seed;
  Values result;
  run_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
    Gpt model = job.model(group->device());
    DistributedDataParallel ddp(model, group, options);
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
  EXPECT_NE(gradients(1, 0.0f), wanted) << "dropout does nothing";
  EXPECT_NE(gradients(1, 0.1f, 6), wanted) << "the seed does nothing";
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
