// SPDX-License-Identifier: Apache-2.0
// Runs of LibTorch that stop and go on: every optimizer, buffers, noise, the position in the data.
#include "lockstep/libtorch/snapshots.h"

#include <torch/optim.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "lockstep/libtorch/samplers.h"
#include "tests/libtorch/common.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::snapshots_test {
namespace {

namespace fs = std::filesystem;
namespace nn = ::torch::nn;
namespace optim = ::torch::optim;

constexpr std::int64_t kSamples = 20, kSteps = 12;

struct Net : nn::Module {
  explicit Net(double dropout_of = 0) : dropout(register_module("dropout", nn::Dropout(dropout_of))) {}
  nn::Linear in = register_module("in", nn::Linear(6, 8));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(8));
  nn::LSTM lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(8, 5).batch_first(true)));
  nn::Dropout dropout;
  nn::Linear out = register_module("out", nn::Linear(5, 2));
  at::Tensor mask = register_buffer("mask", at::ones({2}, at::kBool));
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = norm(in(x)).unsqueeze(1).expand({x.size(0), 3, 8});
    return out(dropout(std::get<0>(lstm(h)).select(1, 2))).masked_fill(mask.logical_not(), 0);
  }
};

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const Net&, std::vector<at::Tensor>)>;

struct Outcome {
  std::optional<std::int64_t> restored;
  std::vector<at::Tensor> state;  // of rank 0: parameters and buffers
};

struct RunOptions {
  int ranks = 1;
  double dropout = 0;
  std::optional<std::int64_t> rank_0_dies_in = std::nullopt;  // the step, between its forward and its backward
};

// Goes on in `folder` until `stop` steps are done, with a snapshot in every third.
Outcome run(const RunOptions& options, const fs::path& folder, std::int64_t stop, const MakeOptimizer& make_optimizer) {
  Outcome outcome;
  run_torch_ranks(options.ranks, [&](const Group& group) {
    Net net(options.dropout);
    initialize(net, 3 + static_cast<std::uint64_t>(group->rank()));
    libtorch::DistributedDataParallel ddp(net, group, {.seed = 5});
    const auto optimizer = make_optimizer(net, ddp.parameters());
    const at::Tensor x = at::linspace(-1, 1, kSamples * 6).sin().view({kSamples, 6});
    libtorch::GlobalBatchSampler sampler(kSamples, *group, {.global_batch = 12, .seed = 2});
    const bool dies = options.rank_0_dies_in && group->rank() == 0;
    libtorch::Snapshots snapshots(folder, ddp, {.every = 3, .rescue = !dies});
    snapshots.add("optimizer", *optimizer);
    snapshots.add("data", sampler);
    const auto restored = snapshots.restore();
    while (ddp.steps() < stop) {
      sampler.reset();
      while (const auto indices = sampler.next(12)) {
        std::vector<std::int64_t> rows(indices->begin(), indices->end());
        const at::Tensor batch = x.index_select(0, at::tensor(rows));
        optimizer->zero_grad();
        const at::Tensor loss = (ddp(batch) - batch.slice(1, 0, 2)).square().mean();
        if (options.rank_0_dies_in && ddp.steps() == *options.rank_0_dies_in) {
          group->barrier().wait();  // all ranks' forward has begun
          if (dies) throw std::runtime_error("this rank dies");
        }
        ddp.backward(loss);
        optimizer->step();
        snapshots.step();
        snapshots.wait();
        if (ddp.steps() == stop) break;
      }
    }
    if (group->rank() != 0) return;
    if (restored) outcome.restored = restored->step;
    for (const at::Tensor& tensor : net.parameters()) outcome.state.push_back(tensor.detach().clone());
    for (const at::Tensor& tensor : net.buffers()) outcome.state.push_back(tensor.clone());
  });
  return outcome;
}

void expect_equal(const std::vector<at::Tensor>& seen, const std::vector<at::Tensor>& wanted, const std::string& what) {
  ASSERT_EQ(seen.size(), wanted.size());
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_TRUE(at::equal(seen[i], wanted[i])) << what << ", tensor " << i;
}

// A class of the program's own: what it keeps beside SGD's state is known to its save() alone.
struct OwnOptimizer : optim::SGD {
  using SGD::SGD;
};

template <typename Optimizer, typename Options>
MakeOptimizer made_with(const Options& options) {
  return [=](const Net&, std::vector<at::Tensor> p) { return std::make_unique<Optimizer>(std::move(p), options); };
}

const std::map<std::string, MakeOptimizer>& optimizers() {
  const auto momentum = optim::SGDOptions(0.1).momentum(0.9);
  static const std::map<std::string, MakeOptimizer> all{
      {"SGD", made_with<optim::SGD>(optim::SGDOptions(0.1))},
      {"SGD with momentum", made_with<optim::SGD>(momentum)},
      {"own", made_with<OwnOptimizer>(momentum)},
      {"Adam", made_with<optim::Adam>(optim::AdamOptions(0.01).amsgrad(true))},
      {"AdamW", made_with<optim::AdamW>(optim::AdamWOptions(0.01))},
      {"RMSprop", made_with<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.5).centered(true))},
      {"Adagrad", made_with<optim::Adagrad>(optim::AdagradOptions(0.05))},
      {"two groups", [](const Net& net, std::vector<at::Tensor>) {
         std::vector<optim::OptimizerParamGroup> groups;
         groups.emplace_back(net.in->parameters(), std::make_unique<optim::AdamOptions>(0.01));
         groups.emplace_back(net.out->parameters(), std::make_unique<optim::AdamOptions>(0.002));
         return std::make_unique<optim::Adam>(groups);
       }}};
  return all;
}

// The first step after a start has fewer rows than the very first: gradients are counted in what that one had.
TEST(Snapshots, EveryOptimizerGoesOnWithTheSameBits) {
  for (const auto& [name, make] : optimizers()) {
    for (const int ranks : {1, 3}) {
      const TemporaryFolder whole, parts;
      // Torch's generator is one for all threads.
      const RunOptions options{.ranks = ranks, .dropout = ranks == 1 ? 0.3 : 0};
      const Outcome undisturbed = run(options, whole / "run", kSteps, make);
      EXPECT_EQ(run(options, parts / "run", 5, make).restored, std::nullopt);
      EXPECT_EQ(run(options, parts / "run", 7, make).restored, 3);
      const Outcome last = run(options, parts / "run", kSteps, make);
      EXPECT_EQ(last.restored, 6);
      expect_equal(last.state, undisturbed.state, name);
    }
  }
}

// A snapshot of before the first backward has no unit of weights.
TEST(Snapshots, WithoutAUnitOfWeightsAreRestored) {
  const TemporaryFolder folder;
  for (const bool is_first : {true, false}) {
    run_torch_ranks(2, [&](const Group& group) {
      Net net;
      libtorch::DistributedDataParallel ddp(net, group);
      libtorch::Snapshots snapshots(folder / "run", ddp);
      EXPECT_EQ(snapshots.restore().has_value(), !is_first);
      if (is_first) snapshots.save();
      ddp(at::ones({4 + group->rank(), 6})).mean().backward();
      EXPECT_EQ(ddp.last_weight(), 9);
    });
  }
}

// Each rank's running statistics are of its own rows until the next forward brings rank 0's.
TEST(Snapshots, ASurvivorSavesTheBuffersThatRankZeroHad) {
  const TemporaryFolder whole, parts;
  const auto& make = optimizers().at("Adam");
  const Outcome undisturbed = run({.ranks = 3}, whole / "run", kSteps, make);
  EXPECT_ANY_THROW(run({.ranks = 3, .rank_0_dies_in = 5}, parts / "run", kSteps, make));
  const Outcome last = run({.ranks = 3}, parts / "run", kSteps, make);
  EXPECT_EQ(last.restored, 5);
  expect_equal(last.state, undisturbed.state, "after it");
}

// As of averaged weights.
TEST(Snapshots, AModuleThatIsNotTrainedIsKept) {
  const TemporaryFolder folder;
  for (const bool is_first : {true, false}) {
    run_torch_ranks(2, [&](const Group& group) {
      Net net;
      const auto averaged = std::make_shared<Net>();
      libtorch::DistributedDataParallel ddp(net, group, {});
      averaged->out->bias.detach().fill_(is_first ? 0.5 : 2);
      libtorch::Snapshots snapshots(folder / "run", ddp);
      snapshots.add("averaged", averaged);
      if (!snapshots.restore()) snapshots.save();
      EXPECT_TRUE(at::equal(averaged->out->bias, at::full({2}, 0.5f)));
    });
  }
}

// Keeps nothing, as its save() is the base class's.
struct WithoutSave : optim::Optimizer {
  explicit WithoutSave(std::vector<at::Tensor> p)
      : Optimizer({optim::OptimizerParamGroup(std::move(p))}, std::make_unique<optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure) override { return {}; }
};

// Has a tensor that is not there yet.
struct WithAHole : optim::SGD {
  using SGD::SGD;
  void save(::torch::serialize::OutputArchive& archive) const override { archive.write("average", at::Tensor()); }
};

TEST(Snapshots, WhatCannotBeKeptIsRefusedByNameWhenItIsAdded) {
  run_torch_ranks(1, [](const Group& group) {
    const TemporaryFolder folder;
    Net net;
    libtorch::DistributedDataParallel ddp(net, group);
    libtorch::Snapshots snapshots(folder / "run", ddp);
    const auto expect_refused = [&](auto& item, std::initializer_list<std::string_view> words) {
      const std::string text = error_of([&] { snapshots.add("second", item); });
      expect_text(text, words);
      EXPECT_EQ(text.find("Exception raised from"), text.npos) << "no backtrace: " << text;
    };
    optim::LBFGS lbfgs(ddp.parameters());
    expect_refused(lbfgs, {"'second'", "LBFGS", "can't be kept", "don't add this optimizer"});
    WithoutSave without(ddp.parameters());
    expect_refused(without, {"'second'", "WithoutSave", "its save() writes nothing", "override save() and load()"});
    WithAHole hole(ddp.parameters(), optim::SGDOptions(0.1));
    expect_refused(hole, {"'second'", "WithAHole", "its save() fails with"});
    optim::SGD sparse(ddp.parameters(), optim::SGDOptions(0.1).momentum(0.9));
    net.in->weight.mutable_grad() = at::ones({8, 6}).to_sparse();
    sparse.step();
    expect_refused(sparse, {"'state.in.weight.momentum_buffer' is Sparse"});
    net.zero_grad(true);
    nn::Module sparse_module, meta;
    sparse_module.register_buffer("adjacency", at::eye(3).to_sparse());
    meta.register_parameter("weight", at::empty({3}, at::kMeta));
    expect_refused(sparse_module, {"add('second')", "'adjacency' is Sparse on cpu", "dense"});
    expect_refused(meta, {"add('second')", "'weight' is Strided on meta"});
    // And none of them is in the way of what can be.
    optim::Adam adam(ddp.parameters());
    snapshots.add("second", adam);
    snapshots.restore();
    net.forward(at::ones({4, 6}));
  });
}

TEST(Snapshots, OfAnotherProgramAreRefusedAndSaidWhy) {
  const TemporaryFolder folder;
  const auto& all = optimizers();
  run({}, folder / "run", 4, all.at("SGD with momentum"));
  const auto error_of_run = [&](const MakeOptimizer& make) {
    return error_of([&] { run({}, folder / "run", 6, make); });
  };
  expect_text(error_of_run(all.at("Adam")),
              {"the item is of type 'SGD' in the snapshot, but the program's item is of type 'Adam'"});
  expect_text(error_of_run([](const Net& net, std::vector<at::Tensor>) {
                return std::make_unique<optim::SGD>(net.out->parameters(), optim::SGDOptions(0.1).momentum(0.9));
              }),
              {"optimizer: it has 'in.bias', 'in.weight', "});
  // Nothing was changed: the run that saved it still goes on.
  EXPECT_EQ(run({}, folder / "run", 6, all.at("SGD with momentum")).restored, 3);
}

}  // namespace
}  // namespace lockstep::testing::snapshots_test
