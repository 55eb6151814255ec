// SPDX-License-Identifier: Apache-2.0
// Audits: a rank whose processor computes wrong values is named, nobody else is, and nothing else changes. A processor
// is made to lie by a hook that flips a bit of a gradient.
#include <cstring>
#include <functional>
#include <mutex>
#include <set>

#include "lockstep/libtorch/data_loader.h"
#include "lockstep/libtorch/sharded_optimizer.h"
#include "tests/libtorch/common.h"
#include "tests/support/messages.h"
#include "tests/support/warnings.h"

namespace lockstep::testing::audit_test {
namespace {

namespace nn = ::torch::nn;
using libtorch::DistributedDataParallel;

constexpr std::int64_t kSamples = 100;

class Images : public ::torch::data::datasets::BatchDataset<Images, ::torch::data::Example<>> {
 public:
  ::torch::data::Example<> get_batch(::torch::ArrayRef<std::size_t> ids) override {
    std::vector<at::Tensor> x, y;
    for (const std::size_t id : ids) {
      x.push_back(random_tensor({1, 6, 6}, 2 * id));
      y.push_back(random_classes({1}, 3, 2 * id + 1));
    }
    return {at::stack(x), at::cat(y)};
  }
  ::torch::optional<std::size_t> size() const override { return kSamples; }
};

struct CnnImpl : nn::Module {
  nn::Conv2d first = register_module("first", nn::Conv2d(nn::Conv2dOptions(1, 4, 3)));
  nn::BatchNorm2d over_images = register_module("over_images", nn::BatchNorm2d(4));
  nn::Linear head = register_module("head", nn::Linear(4 * 4 * 4, 3));
  at::Tensor turns = register_buffer("turns", at::zeros({1}));
  at::Tensor forward(const at::Tensor& x) {
    turns.add_(1);
    return head(at::silu(over_images(first(x))).flatten(1));
  }
};
TORCH_MODULE(Cnn);

// A call of loss_of.
struct Call {
  int rank;
  std::int64_t step;
  bool is_audit;       // of another rank's rows
  std::int64_t begin;  // of the rows
  int number;          // of the rank's calls in the step
};
using Lies = std::function<bool(const Call&)>;

struct Training {
  int ranks = 2;
  int micro_batches = 6;
  std::int64_t global_batch = 24;
  int epochs = 2;
  int audit_every = 2;
  Lies lies = {};
  const char* parameter = "first.weight";  // whose gradient is wrong
  Shard shard = Shard::none;
  std::vector<int> hosts = {};
};

struct Outcome {
  Tensors state;
  std::vector<double> losses;
  std::int64_t counted = 0;  // rows in calls that count
  std::string error;         // that all ranks have
  int blamed = -2;           // the rank in its cause; -2: no error
};

void flip_a_bit(at::Tensor& gradient) {
  std::int32_t bits = 0;
  std::memcpy(&bits, gradient.data_ptr(), sizeof bits);
  bits ^= 1 << 20;
  std::memcpy(gradient.data_ptr(), &bits, sizeof bits);
}

Outcome train(const Training& run) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(run.ranks));
  RankThreadsOptions threads;
  threads.hosts = run.hosts;
  if (!run.hosts.empty()) threads.backend = "tcp";
  run_torch_ranks(
      run.ranks,
      [&](const Group& group) {
        Outcome& outcome = outcomes[static_cast<std::size_t>(group->rank())];
        Cnn model;
        initialize(*model, 4);
        libtorch::DdpOptions options;
        options.reproducible = {.micro_batches = run.micro_batches, .global_batch = run.global_batch};
        options.shard = run.shard;
        options.buffer_rules["turns"] = libtorch::BufferRule::sum;
        bool is_lying = false;
        model->named_parameters()[run.parameter].register_hook([&](at::Tensor gradient) {
          if (!is_lying) return gradient;
          at::Tensor wrong = gradient.clone();
          flip_a_bit(wrong);
          return wrong;
        });
        DistributedDataParallel ddp(model, group, options);
        ::torch::optim::Adam whole(ddp.parameters(), ::torch::optim::AdamOptions(0.01));
        std::optional<libtorch::ShardedOptimizer<::torch::optim::Adam>> in_shards;
        if (run.shard == Shard::optimizer) in_shards.emplace(ddp, ::torch::optim::AdamOptions(0.01));
        libtorch::DataLoader loader(
            Images(), *group,
            {.global_batch = run.global_batch, .micro_batches = run.micro_batches, .audit_every = run.audit_every});
        ddp.watch(loader);
        try {
          for (int epoch = 0; epoch < run.epochs; ++epoch) {
            for (auto& batch : loader) {
              model->zero_grad();
              int number = 0;
              ddp.backward(batch.data.size(0), [&](std::int64_t begin, std::int64_t end) {
                const bool is_audit = ddp.is_auditing();
                if (!is_audit) outcome.counted += end - begin;
                is_lying = run.lies && run.lies({group->rank(), ddp.steps(), is_audit, begin, number++});
                return at::cross_entropy_loss(ddp(batch.data.slice(0, begin, end)), batch.target.slice(0, begin, end));
              });
              outcome.losses.push_back(ddp.last_loss().value_or(-1));
              if (in_shards) {
                in_shards->step();
              } else {
                whole.step();
              }
            }
          }
        } catch (const Mismatch& error) {
          outcome.error = error.what();
          outcome.blamed = error.cause() == nullptr ? -1 : error.cause()->rank;
        }
        outcome.state = copies_of(model->named_parameters());
        for (const auto& buffer : model->named_buffers()) outcome.state[buffer.key()] = buffer.value().clone();
      },
      threads);
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(same_bits(outcome.state, outcomes[0].state));
    EXPECT_EQ(outcome.losses, outcomes[0].losses);
    EXPECT_EQ(outcome.error, outcomes[0].error);
    EXPECT_EQ(outcome.blamed, outcomes[0].blamed);
  }
  for (std::size_t i = 1; i < outcomes.size(); ++i) outcomes[0].counted += outcomes[i].counted;
  return outcomes[0];
}

// Returns the warnings.
std::vector<std::string> expect_undisturbed(const Training& run) {
  const Warnings warnings;
  const Outcome with = train(run);
  Training alone = run;
  alone.ranks = 1;
  alone.audit_every = 0;
  alone.lies = {};
  alone.shard = Shard::none;
  alone.hosts = {};
  const Outcome without = train(alone);
  EXPECT_EQ(with.error, "");
  EXPECT_TRUE(same_bits(with.state, without.state));
  EXPECT_EQ(with.losses, without.losses);
  EXPECT_EQ(with.counted, run.epochs * kSamples);
  return warnings.lines();
}

TEST(Audits, ChangeNothing) {
  for (const int ranks : {2, 3, 5}) {
    for (const Shard shard : {Shard::none, Shard::optimizer}) {
      EXPECT_TRUE(expect_undisturbed({.ranks = ranks, .shard = shard}).empty());
    }
  }
  EXPECT_TRUE(expect_undisturbed({.ranks = 2, .global_batch = 30}).empty());  // epochs end with a short batch
  EXPECT_TRUE(expect_undisturbed({.ranks = 4, .audit_every = 3, .hosts = {2, 2}}).empty());
}

// The gradients of the first computation are wrong, and right when they are computed again.
TEST(Audits, ComputeAStepAgainInWhichTheAuditedRankWasWrongOnce) {
  for (const int ranks : {2, 3}) {
    const auto warnings =
        expect_undisturbed({.ranks = ranks, .lies = [&](const Call& call) {
                              return call.rank == 1 && call.step == 2 && !call.is_audit && call.number <= 6 / ranks;
                            }});
    ASSERT_EQ(warnings.size(), 1u);
    expect_text(warnings[0], {"the audit of step 2", "first in 'first.weight'", "rank 1 on",
                              " got another result when it computed again", "transient", "computed again."});
  }
}

TEST(Audits, NameTheAuditorThatWasWrongOnce) {
  const auto warnings = expect_undisturbed(
      {.ranks = 3, .lies = [](const Call& call) { return call.rank == 2 && call.step == 6 && call.number == 0; }});
  ASSERT_EQ(warnings.size(), 1u);
  expect_text(warnings[0], {"the audit of step 6", "rank 2 on", " got another result"});
  EXPECT_EQ(warnings[0].find("the step is computed again"), std::string::npos);
}

TEST(Audits, EndTheJobAtTheSecondFaultOfARank) {
  const Outcome outcome = train({.ranks = 3, .lies = [](const Call& call) {
                                   return call.rank == 2 && call.step >= 5 && call.is_audit && call.number == 0;
                                 }});
  EXPECT_EQ(outcome.blamed, 2);
  EXPECT_EQ(outcome.losses.size(), 8u);
  expect_text(outcome.error, {"the audit of step 8", "as in an earlier audit", "Up to step 2 all is sound"});
}

// From step 1 on. A third rank agrees with one of the two.
TEST(Audits, NameTheRankThatIsWrongForGood) {
  for (const int liar : {0, 1, 2}) {
    const Outcome outcome =
        train({.ranks = 3, .lies = [liar](const Call& call) { return call.rank == liar && call.step >= 1; }});
    EXPECT_EQ(outcome.blamed, liar) << outcome.error;
    EXPECT_EQ(outcome.losses.size(), 2u);
    expect_text(outcome.error,
                {"the audit of step 2", "'first.weight'", "contradicts 2 ranks", "Up to step 0 all is sound"});
  }
}

TEST(Audits, SayThatTwoRanksCannotTellWhichOfThemIsWrong) {
  const Training two{.ranks = 2, .lies = [](const Call& call) { return call.rank == 1; }, .parameter = "head.bias"};
  Training hosts = two;
  hosts.ranks = 4;
  hosts.hosts = {2, 2};
  for (const Training& run : {two, hosts}) {
    const Outcome outcome = train(run);
    EXPECT_EQ(outcome.blamed, -1);
    EXPECT_TRUE(outcome.losses.empty());
    expect_text(outcome.error,
                {"the audit of step 0", "'head.bias'", "nobody knows which", "Up to step 0 all is sound"});
  }
}

}  // namespace
}  // namespace lockstep::testing::audit_test
