// SPDX-License-Identifier: Apache-2.0
// Optimizers in shards of the ranks (DdpOptions::shard) train the weights that whole ones train, to the last bit; and
// what would be wrong with shards is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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

std::size_t at(std::uint64_t i) { return static_cast<std::size_t>(i); }

Tensor normal(const Shape& shape, std::uint64_t seed) {
  const Tensor result = Tensor::empty(shape);
  Generator random(seed);
  for (float& value : result.values<float>()) value = random.normal();
  return result;
}

// Pairs of layers around x, of random sizes, used in another order than that of registration: the first one used twice,
// the second one only where the rank says so, the last one never.
struct Net : nn::Module {
  explicit Net(std::uint64_t seed) {
    Generator random(seed);
    width = 1 + static_cast<std::int64_t>(random.below(9));
    const std::size_t pairs = 3 + at(random.below(3));
    for (std::size_t i = 0; i < pairs; ++i) {
      const auto hidden = 1 + static_cast<std::int64_t>(random.below(40));
      in.push_back(register_module("in" + std::to_string(i), nn::Linear(width, hidden)));
      out.push_back(register_module("out" + std::to_string(i), nn::Linear(hidden, width)));
      order.push_back(i);
    }
    share_parameter("tied", in[0].weight());
    for (std::size_t i = 1; i < order.size(); ++i) std::swap(order[i], order[at(random.below(i + 1))]);
    initialize(seed);
  }
  Tensor pair(std::size_t i, const Tensor& x) { return out[order[i]](tanh(in[order[i]](x))); }
  Tensor forward(const Tensor& x) override {
    Tensor y = x + pair(0, x);
    for (std::size_t i = uses_second ? 1 : 2; i + 1 < order.size(); ++i) y = y + pair(i, y);
    return y + pair(0, y);
  }

  std::int64_t width = 0;
  std::vector<nn::Linear> in, out;
  std::vector<std::size_t> order;
  bool uses_second = true;
};

// By step, bit by bit.
struct Record {
  std::vector<Values> weights;
  std::vector<double> norms;
  bool operator==(const Record&) const = default;
};

std::unique_ptr<optim::Optimizer> optimizer_of(std::uint64_t kind, std::vector<optim::ParameterGroup> groups) {
  if (kind == 0) return std::make_unique<optim::AdamW>(std::move(groups), optim::AdamWOptions{.lr = 0.02});
  return std::make_unique<optim::SGD>(std::move(groups),
                                      optim::SgdOptions{.lr = 0.05, .momentum = kind == 1 ? 0.9 : 0.0});
}

// Six steps of a program that `seed` makes up: its model, buckets, frozen parameters, optimizer, rows and micro-batches
// of each rank, and clipping. The generator is drawn from alike on all ranks.
Record trained(const Group& group, std::uint64_t seed, Shard shard) {
  Generator random(seed, 1);
  Net net(seed);
  for (const Tensor& parameter : net.parameters()) parameter.set_requires_grad(random.below(8) != 0);
  const std::size_t cap = std::array<std::size_t, 4>{0, 64, 3000, 1 << 20}[at(random.below(4))];
  DistributedDataParallel ddp(net, group,
                              {.buckets = {.cap_bytes = cap, .first_cap_bytes = cap / 2},
                               .overlap = random.below(3) != 0,
                               .compare_every = 2,
                               .shard = shard});
  std::vector<optim::ParameterGroup> groups{{.weight_decay = 0.1}, {.weight_decay = 0}};
  for (const Tensor& parameter : ddp.parameters()) {
    const std::uint64_t which = random.below(8);  // two of them in neither group: they keep their values
    if (parameter.requires_grad() && which < 6) groups[at(which % 2)].parameters.push_back(parameter);
  }
  const auto optimizer = optimizer_of(random.below(3), std::move(groups));
  const bool clips = random.below(3) != 0;
  Record record;
  for (std::uint64_t step = 0; step < 6; ++step) {
    const std::uint64_t parts = 1 + random.below(3);
    for (std::uint64_t part = 0; part < parts; ++part) {
      std::int64_t own_rows = 0;
      for (int rank = 0; rank < group->size(); ++rank) {
        const auto rows = static_cast<std::int64_t>(random.below(4));
        const bool uses_second = random.below(2) == 0;
        if (rank != group->rank()) continue;
        own_rows = rows;
        net.uses_second = uses_second;
      }
      const std::uint64_t data = 100 * seed + 10 * step + part + 10000 * static_cast<std::uint64_t>(group->rank());
      const auto local = ddp.no_sync(part + 1 < parts);
      ddp.backward(mse_loss(ddp(normal({own_rows, net.width}, data)), normal({own_rows, net.width}, data + 7)));
    }
    if (clips) record.norms.push_back(optim::clip_grad_norm(ddp.parameters(), 0.3));
    if (step == 3) optimizer->set_learning_rate(0.01);
    optimizer->step();
    net.zero_grad();
    record.weights.push_back(weights_of(net));
  }
  ddp.check_replicas();
  return record;
}

TEST(Sharded, AnyProgramTrainsTheWeightsThatItTrainsWithoutShards) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      run_ranks(ranks, [&](const Group& group) {
        const Record whole = trained(group, seed, Shard::none);
        EXPECT_NE(whole.weights.front(), whole.weights.back()) << "nothing was learned";
        EXPECT_TRUE(trained(group, seed, Shard::optimizer) == whole) << "seed " << seed << " on " << ranks << " ranks";
      });
    }
  }
}

// A hash after each of 8 steps in fixed micro-batches, with clipping.
std::vector<std::uint64_t> hashes_in_micro_batches(int ranks, Shard shard, Loss loss) {
  std::vector<std::uint64_t> hashes;
  run_ranks(ranks, [&](const Group& group) {
    nn::Sequential model = Program::make_model(7);
    DistributedDataParallel ddp(
        model, group,
        {.buckets = {.cap_bytes = 64}, .loss = loss, .reproducible = {6, kBatch}, .shard = shard, .seed = 5});
    optim::AdamW optimizer(ddp.parameters(), {.lr = 0.01, .weight_decay = 0.1});
    const data::GlobalBatchSampler sampler(kSamples, *group, {.global_batch = kBatch, .micro_batches = 6});
    int clipped = 0;
    for (std::int64_t step = 0; step < 8; ++step) {
      const data::Batch batch = dataset().batch(sampler.batch(step % 5));
      ddp.backward(batch, [&](const data::Batch& rows) {
        const Tensor mean = mse_loss(ddp(rows.x, rows.ids), rows.y);
        return loss == Loss::mean ? mean : scale(mean, static_cast<float>(rows.size()));
      });
      clipped += optim::clip_grad_norm(ddp.parameters(), 0.1) > 0.1;
      optimizer.step();
      optimizer.zero_grad();
      if (group->rank() == 0) hashes.push_back(hash_of(model));
    }
    EXPECT_GT(clipped, 0);
  });
  return hashes;
}

TEST(Sharded, FixedMicroBatchesHaveTheSameBitsAtAnyNumberOfRanksWithShardsOrWithout) {
  for (const Loss loss : {Loss::mean, Loss::sum}) {
    const auto alone = hashes_in_micro_batches(1, Shard::none, loss);
    ASSERT_EQ(alone.size(), 8u);
    EXPECT_EQ(hashes_in_micro_batches(3, Shard::none, loss), alone);
    for (int ranks = 1; ranks <= 6; ++ranks) {
      EXPECT_EQ(hashes_in_micro_batches(ranks, Shard::optimizer, loss), alone) << ranks << " ranks";
    }
  }
}

std::int64_t elements_of(const optim::Optimizer& optimizer) {
  std::int64_t count = 0;
  for (const optim::NamedState& state : optimizer.state()) {
    if (state.tensor.dtype() == DType::f32) count += state.tensor.count();
  }
  return count;
}

TEST(Sharded, ARankHasTheStateOfItsShareAndAWorldOfOneOfAll) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    std::mutex mutex;
    std::vector<std::int64_t> held;
    std::int64_t parameters = 0;
    run_ranks(ranks, [&](const Group& group) {
      Net net(3);
      DistributedDataParallel ddp(net, group, kSharded);
      const optim::AdamW optimizer(ddp.parameters());
      if (ranks == 1) {
        EXPECT_EQ(optimizer.state()[1].tensor.shape(), ddp.parameters()[0].shape());
      }
      const std::scoped_lock lock(mutex);
      parameters = net.parameter_count();
      held.push_back(elements_of(optimizer));
    });
    std::int64_t sum = 0;
    for (const std::int64_t own : held) sum += own;
    EXPECT_EQ(sum, 2 * parameters);
    // A part of the only bucket, in which each of the parameters is padded to whole lines.
    for (const std::int64_t own : held) EXPECT_LE(own, 2 * (parameters / ranks + 16 * 30)) << ranks;
  }
}

struct Pair {
  Net net{5};
  DistributedDataParallel ddp;
  optim::AdamW optimizer;
  explicit Pair(const Group& group, const DdpOptions& options = kSharded)
      : ddp(net, group, options), optimizer(ddp.parameters(), {.lr = 0.01}) {}
  void backward() { ddp.backward(mean(ddp(normal({3, net.width}, 9)))); }
};

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

// Ranks are threads here: the bytes are those of all of them.
TEST(Sharded, MemoryIsCountedAndTheStateIsThereOnceInsteadOfOnEveryRank) {
  const trace::HeldBytes before = trace::totals().held;
  for (const int ranks : {1, 3}) {
    for (const Shard shard : {Shard::none, Shard::optimizer}) {
      std::barrier together(ranks);
      run_ranks(ranks, [&](const Group& group) {
        Net net(4);
        DistributedDataParallel ddp(net, group, {.shard = shard});
        const optim::AdamW optimizer(ddp.parameters());
        std::int64_t elements = 0;
        for (const Tensor& parameter : ddp.parameters()) elements += parameter.shape().count();
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

TEST(Sharded, AHookIsRefused) {
  run_ranks(2, [&](const Group& group) {
    Net net(1);
    DdpOptions options = kSharded;
    options.comm_hook.name = "mine";
    expect_text(error_of([&] { DistributedDataParallel ddp(net, group, options); }),
                {"Shard::optimizer is set with communication hook 'mine'"});
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

TEST(Sharded, ARankThatFailsInItsUpdateIsNamedOnEveryRank) {
  run_ranks(3, [](const Group& group) {
    Net net(4);
    DistributedDataParallel ddp(net, group, kSharded);
    Halving optimizer(ddp.parameters());
    if (group->rank() == 1) optimizer.in_update = [] { throw std::runtime_error("no room for the moments"); };
    const auto step = [&] {  // rank 1 may have failed before the others are through with theirs
      ddp.backward(mean(ddp(normal({3, net.width}, 9))));
      optimizer.step();
      group->barrier().wait();
    };
    if (group->rank() == 1) {
      EXPECT_THROW(step(), std::runtime_error);
    } else {
      expect_text(error_of<PeerLost>(step), {"rank 1 (", "failed in the update after step 0: no room for the moments"});
    }
  });
}

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

TEST(Sharded, TrainsOverAGroupWithinTheJobs) {
  std::vector<Record> of_ranks(4);
  run_ranks(4, [&](const Group& group) {
    const Group pair = group->split(group->rank() % 2);
    of_ranks[static_cast<std::size_t>(group->rank())] = trained(pair, 2, Shard::optimizer);
    group->barrier().wait();
  });
  run_ranks(2, [&](const Group& group) {
    const Record wanted = trained(group, 2, Shard::none);
    for (const Record& record : of_ranks) EXPECT_TRUE(record == wanted);
  });
}

TEST(Sharded, RanksCountTheSameWritesAndStopAfterTheSameStep) {
  std::mutex mutex;
  std::vector<std::uint64_t> writes;
  run_ranks(3, [&](const Group& group) {
    Pair it(group, {.compare_every = 1, .shard = Shard::optimizer});
    for (int step = 0; step < 10 && !it.ddp.should_stop(); ++step) {
      if (step == 3 && group->rank() == 1) request_stop(*group, "enough");
      it.backward();
      it.optimizer.step();
      it.optimizer.zero_grad();
    }
    EXPECT_EQ(it.ddp.steps(), 4);
    EXPECT_EQ(it.ddp.should_stop(), "enough");
    const std::scoped_lock lock(mutex);
    for (const Tensor& parameter : it.ddp.parameters()) writes.push_back(parameter.version());
  });
  const std::size_t each = writes.size() / 3;
  for (std::size_t i = each; i < writes.size(); ++i) EXPECT_EQ(writes[i], writes[i - each]);
}

}  // namespace
}  // namespace lockstep::testing::sharded_test
