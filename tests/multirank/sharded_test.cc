// SPDX-License-Identifier: Apache-2.0
// Optimizers in shards of the ranks (DdpOptions::shard) train the weights that whole ones train, to the last bit, as
// any program of seams_test.cc does, and that of snapshots_contract.h at any number of ranks; what would be wrong is
// refused.
#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <latch>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/autograd/graph.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/comm/stop.h"
#include "lockstep/data/sampler.h"
#include "lockstep/nn/nn.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/distributed_data_parallel.h"
#include "runtime/trace/process_trace.h"
#include "tests/multirank/snapshot_program.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::sharded_test {
namespace {

const DdpOptions kSharded{.shard = Shard::optimizer};

Tensor normal(const Shape& shape, std::uint64_t seed) {
  const Tensor result = Tensor::empty(shape);
  Generator random(seed);
  for (float& value : result.values<float>()) value = random.normal();
  return result;
}

struct Net : nn::Module {
  explicit Net(std::uint64_t seed) { initialize(seed); }
  Tensor forward(const Tensor& x) override { return out(tanh(in(x))); }
  static constexpr std::int64_t width = 5;
  nn::Linear in = register_module("in", nn::Linear(width, 400));
  nn::Linear out = register_module("out", nn::Linear(400, width));
};

struct Pair {
  Net net{5};
  DistributedDataParallel ddp;
  optim::AdamW optimizer;
  explicit Pair(const Group& group, const DdpOptions& options = kSharded)
      : ddp(net, group, options), optimizer(ddp.parameters(), {.lr = 0.01}) {}
  void backward(std::uint64_t rows = 9) { ddp.backward(mean(ddp(normal({3, net.width}, rows)))); }
};

TEST(Sharded, TrainsOverAGroupWithinTheJobs) {
  run_ranks(4, [](const Group& group) {
    const Group pair = group->split(group->rank() % 2);
    Pair it(pair), whole(pair, {});
    for (int step = 0; step < 3; ++step) {
      for (Pair* const each : {&it, &whole}) {
        each->backward(static_cast<std::uint64_t>(group->rank()));
        each->optimizer.step();
        each->net.zero_grad();
      }
    }
    EXPECT_EQ(weights_of(it.net), weights_of(whole.net));
  });
}

TEST(Sharded, GradientsInSharesAreReadByNormAndOptimizerAlone) {
  run_ranks(3, [](const Group& group) {
    Pair it(group);
    const Tensor first = it.ddp.parameters()[0];
    {
      const auto local = it.ddp.no_sync();
      it.backward();
      EXPECT_EQ(first.grad().shape(), first.shape()) << "this rank's own, still";
    }
    it.backward();
    EXPECT_TRUE(first.has_grad());
    for (const bool has_stepped : {false, true}) {
      if (has_stepped) it.optimizer.step();
      expect_text(error_of([&] { return first.grad(); }), {"grad() of a parameter float32", "Shard::optimizer"});
      EXPECT_TRUE(first.has_grad());
    }
    it.net.zero_grad();
    EXPECT_FALSE(first.grad().defined());
    EXPECT_EQ(optim::grad_norm(it.ddp.parameters()), 0) << "there are none";
  });
}

TEST(Sharded, TheNormOfSomeParametersIsThatOfWholeGradients) {
  run_ranks(4, [](const Group& group) {
    Pair whole(group, {}), it(group);
    whole.backward();
    it.backward();
    for (std::size_t i = 0; i < whole.ddp.parameters().size(); ++i) {
      EXPECT_EQ(optim::grad_norm({&it.ddp.parameters()[i], 1}), optim::grad_norm({&whole.ddp.parameters()[i], 1}));
    }
  });
}

std::int64_t elements_of(const optim::Optimizer& optimizer) {
  std::int64_t count = 0;
  for (const optim::NamedState& state : optimizer.state()) {
    if (state.tensor.dtype() == DType::f32) count += state.tensor.count();
  }
  return count;
}

// Ranks are threads here: the bytes are those of all of them.
TEST(Sharded, MemoryIsCountedAndTheStateIsThereOnceInsteadOfOnEveryRank) {
  const trace::HeldBytes before = trace::totals().held;
  for (const int ranks : {1, 3, 5}) {
    for (const Shard shard : {Shard::none, Shard::optimizer}) {
      std::barrier together(ranks);
      run_ranks(ranks, [&](const Group& group) {
        Net net(4);
        DistributedDataParallel ddp(net, group, {.shard = shard});
        const optim::AdamW optimizer(ddp.parameters());
        const std::int64_t elements = net.parameter_count();
        const bool is_whole = ranks == 1 || shard == Shard::none;
        EXPECT_EQ(optimizer.state()[1].tensor.shape() == ddp.parameters()[0].shape(), is_whole);
        // A part of the only bucket, in which each of the parameters is padded to whole lines.
        EXPECT_LE(elements_of(optimizer), 2 * (elements / (is_whole ? 1 : ranks) + 16 * 30)) << ranks;
        together.arrive_and_wait();
        trace::HeldBytes held = trace::totals().held;
        for (std::size_t i = 0; i < held.size(); ++i) held[i] -= before[i];
        EXPECT_EQ(held[0], ranks * 4 * elements);
        EXPECT_GE(held[1], ranks * 4 * elements) << "with the used map and the look for NaN behind the gradients";
        EXPECT_LE(held[1], ranks * (4 * elements + (8 << 10)));
        EXPECT_EQ(held[2], (shard == Shard::none ? ranks : 1) * 8 * elements);
        together.arrive_and_wait();
      });
      EXPECT_EQ(trace::totals().held, before) << "given back";
    }
  }
}

TEST(Sharded, ANormThatIsNotFiniteNamesOneParameterOnEveryRank) {
  std::vector<std::string> texts(3);
  run_ranks(3, [&](const Group& group) {
    Pair it(group, {.not_finite = NotFinite::ignore, .shard = Shard::optimizer});
    const Tensor x = normal({2, it.net.width}, 9);
    if (group->rank() == 1) x.values<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    it.ddp.backward(mean(it.ddp(x)));
    std::string& text = texts[static_cast<std::size_t>(group->rank())];
    text = error_of<Error>([&] { optim::clip_grad_norm(it.ddp.parameters(), 1); });
    expect_text(text, {"the gradient's norm is nan; the first parameter with such a gradient is number "});
  });
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
}

TEST(Sharded, WhatNeedsAWholeGradientIsRefused) {
  std::latch both(2);
  run_ranks(2, [&](const Group& group) {
    Pair it(group);
    it.optimizer.step();
    EXPECT_EQ(it.optimizer.steps(), 1) << "without gradients it changes nothing, as without shards";
    {
      const auto local = it.ddp.no_sync();
      it.backward();
      expect_text(error_of([&] { it.optimizer.step(); }),
                  {"optimizer: step(): with Shard::optimizer", "own gradients"});
    }
    it.backward();
    it.optimizer.step();
    expect_text(error_of([&] { it.optimizer.step(); }), {"optimizer: step(): with Shard::optimizer", "the weights of"});
    expect_text(error_of([&] { optim::clip_grad_norm(it.ddp.parameters(), 1); }), {"grad_norm: with Shard::optimizer"});
    EXPECT_EQ(it.optimizer.steps(), 2);
    {
      const auto local = it.ddp.no_sync();
      expect_text(error_of([&] { it.backward(); }),
                  {"still has the gradient of an earlier step at the first micro-batch"});
    }
    both.arrive_and_wait();  // this one fails the group
    expect_text(error_of([&] { it.backward(); }),
                {"still has the gradient of an earlier step at a backward with Shard::optimizer"});
  });
}

TEST(Sharded, OneOptimizerMakesTheStepOfADistributedDataParallel) {
  run_ranks(2, [](const Group& group) {
    Net early(1), net(2), other(3);
    optim::SGD before(early.parameters());
    const Tensor weight = early.parameters()[0];
    backward(sum(mul(weight, weight)));
    DistributedDataParallel of_early(early, group, kSharded), ddp(net, group, kSharded), whole(other, group);
    expect_text(error_of([&] { before.step(); }), {"parameter 0 (float32", "was whole when the optimizer was made"});

    const auto all = ddp.parameters();
    std::vector<Tensor> mixed{all[0], other.parameters()[0]};
    EXPECT_NE(error_of([&] { optim::SGD optimizer(mixed); }).find("parameter 1 (float32"), std::string::npos);
    auto first = std::make_unique<optim::SGD>(std::vector<Tensor>(all.begin(), all.begin() + 2));
    const std::vector<Tensor> rest(all.begin() + 2, all.end());
    expect_text(error_of([&] { optim::SGD optimizer(rest); }),
                {"another optimizer updates parameters", "ParameterGroup"});
    first.reset();
    EXPECT_NO_THROW(optim::SGD{rest});

    expect_text(error_of([&] { DistributedDataParallel again(net, group); }),
                {"also belongs to another live DistributedDataParallel"});
    expect_text(error_of([&] { DistributedDataParallel again(other, group, kSharded); }),
                {"also belongs to another live DistributedDataParallel"});
    DdpOptions options = kSharded;
    options.comm_hook.name = "mine";
    Net fresh(4);
    expect_text(error_of([&] { DistributedDataParallel hooked(fresh, group, options); }),
                {"Shard::optimizer is set with communication hook 'mine'"});
  });
}

TEST(Sharded, ABackwardOfAnotherNetworkAddsNothingToSharesThatWaitForTheirStep) {
  std::latch both_steps_over(2);  // else one rank would hear of the other's failure in its own step
  std::latch refused(1);
  run_ranks(2, [&](const Group& group) {
    Pair it(group);
    nn::Linear front(3, it.net.width);
    front.initialize(1);
    DistributedDataParallel other(front, group);
    const auto through = [&] { other.backward(mean(it.net(other(normal({2, 3}, 5))))); };
    it.backward();
    it.optimizer.step();
    through();
    it.net.zero_grad();
    front.zero_grad();
    it.backward();
    both_steps_over.arrive_and_wait();
    if (group->rank() == 1) return refused.wait();  // it fails the group
    expect_text(error_of(through), {"backward: the loss depends on a parameter float32", "still waits for a step"});
    refused.count_down();
  });
}

TEST(Sharded, AnOptimizerDoesNotOutliveItsShares) {
  run_ranks(2, [](const Group& group) {
    Net net(1);
    auto ddp = std::make_unique<DistributedDataParallel>(net, group, kSharded);
    optim::SGD optimizer(ddp->parameters());
    ddp.reset();
    expect_text(error_of([&] { optimizer.step(); }),
                {"in shards of the ranks (Shard::optimizer) when the optimizer was"});
    DistributedDataParallel again(net, group, {.buckets = {.cap_bytes = 0}, .shard = Shard::optimizer});
    expect_text(error_of([&] { optimizer.step(); }),
                {"in shards of the ranks (Shard::optimizer) when the optimizer was"});
    EXPECT_NO_THROW(optim::SGD{again.parameters()});
  });
}

// Halves all parameters, after whatever the test does in each update.
class Halving final : public optim::Optimizer {
 public:
  explicit Halving(std::vector<Tensor> parameters)
      : Optimizer(std::vector<optim::ParameterGroup>{{std::move(parameters), 0}}, 0.1) {}
  std::string name() const override { return "Halving"; }
  std::vector<std::pair<std::string, double>> settings() const override { return {}; }
  std::vector<optim::NamedState> state() const override { return {}; }
  std::function<void()> in_update = [] {};

 private:
  void update(std::size_t, const Tensor& parameter, const Tensor&) override {
    in_update();
    parameter.copy_from(scale(parameter, 0.5f));
  }
};

// A rank that is lost between two steps costs nothing of the model; of one that is lost in an update nothing is saved.
TEST(Sharded, ASnapshotOfTheModelAloneIsOfAStepThatIsWhole) {
  for (const bool in_update : {false, true}) {
    const TemporaryFolder folder;
    std::vector<Values> weights(6);
    std::latch updating(1);
    EXPECT_ANY_THROW(run_ranks(2, [&](const Group& group) {
      Net net(4);
      DistributedDataParallel ddp(net, group, kSharded);
      Halving optimizer(ddp.parameters());
      Snapshots snapshots(folder / "run", ddp, {.every = 4, .rescue = group->rank() == 0});
      snapshots.restore();
      const auto step = [&] {
        ddp.backward(mean(ddp(normal({3, net.width}, 9))));
        optimizer.step();
        optimizer.zero_grad();
      };
      for (std::size_t i = 0; i < weights.size(); ++i) {
        step();
        if (group->rank() == 0) weights[i] = weights_of(net);
        snapshots.step();
        snapshots.wait();
      }
      group->barrier().wait();
      if (group->rank() == 1 && !in_update) throw std::runtime_error("this rank dies");
      std::once_flag once;
      optimizer.in_update = [&] {
        if (group->rank() == 0) return std::call_once(once, [&] { updating.count_down(); });
        updating.wait();  // else rank 0 may hear of it in its backward
        throw std::runtime_error("this rank dies");
      };
      step();
    }));
    run_ranks(2, [&](const Group& group) {
      Net net(4);
      DistributedDataParallel ddp(net, group, kSharded);
      Snapshots snapshots(folder / "run", ddp);
      const auto restored = snapshots.restore();
      ASSERT_TRUE(restored);
      EXPECT_EQ(restored->step, in_update ? 4 : 6);
      EXPECT_EQ(weights_of(net), weights[static_cast<std::size_t>(restored->step - 1)]);
    });
  }
}

}  // namespace
}  // namespace lockstep::testing::sharded_test
