// SPDX-License-Identifier: Apache-2.0
// Snapshots of LibTorch are matched by name: layers that are frozen, thawed or moved between two runs, and groups
// that come and go.
#include <gmock/gmock.h>
#include <torch/optim.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/libtorch/grad_scaler.h"
#include "lockstep/libtorch/sharded_optimizer.h"
#include "lockstep/libtorch/snapshots.h"
#include "runtime/libtorch/optimizer_item.h"
#include "tests/libtorch/common.h"
#include "tests/support/error_of.h"
#include "tests/support/snapshots_in.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::snapshot_names_test {
namespace {

namespace fs = std::filesystem;
namespace nn = ::torch::nn;
namespace optim = ::torch::optim;
using Layers = std::vector<std::string>;

constexpr RestoreOptions kAny{.allow_missing = true, .allow_unexpected = true};

struct Net : nn::Module {
  Net() {
    for (const char* name : {"a", "b", "c", "d"}) layers.push_back(register_module(name, nn::Linear(3, 3)));
    initialize(*this, 1);
    for (const at::Tensor& parameter : parameters()) parameter.set_requires_grad(false);
  }
  at::Tensor forward(at::Tensor x) {
    for (nn::Linear& layer : layers) x = at::tanh(layer(x));
    return x;
  }
  std::vector<nn::Linear> layers;
};

// A class of the program's own.
struct OwnSgd : optim::SGD {
  using SGD::SGD;
};

enum class Kind { adamw, fused, own };

struct Job {
  std::vector<Layers> groups;  // of the optimizer: the layers that are trained
  std::vector<double> rates = {0.01, 0.02, 0.03};
  int ranks = 1;
  Shard shard = Shard::none;
  RestoreOptions restore = {};
  Kind kind = Kind::adamw;
  int steps = 1;
  double loss_scale = 0;  // 0: gradients of 0
  std::size_t late = 0;   // the last groups, which are added once the optimizer is in the snapshots
};

template <typename Options>
std::vector<optim::OptimizerParamGroup> groups_of(Net& net, const Job& job) {
  std::vector<optim::OptimizerParamGroup> groups;
  for (std::size_t g = 0; g < job.groups.size(); ++g) {
    std::vector<at::Tensor> parameters;
    for (const std::string& layer : job.groups[g]) {
      for (const at::Tensor& parameter : net.named_children()[layer]->parameters()) parameters.push_back(parameter);
    }
    groups.emplace_back(parameters, std::make_unique<Options>(job.rates[g]));
  }
  return groups;
}

std::unique_ptr<optim::Optimizer> optimizer_of(Net& net, libtorch::DistributedDataParallel<Net>& ddp, const Job& job) {
  const optim::AdamWOptions defaults(0.5);
  if (job.kind == Kind::own) {
    return std::make_unique<OwnSgd>(groups_of<optim::SGDOptions>(net, job), optim::SGDOptions(0.5));
  }
  auto groups = groups_of<optim::AdamWOptions>(net, job);
  if (job.shard == Shard::optimizer && job.kind == Kind::fused) {
    return std::make_unique<libtorch::ShardedOptimizer<libtorch::FusedAdamW>>(ddp, std::move(groups), defaults);
  }
  if (job.shard == Shard::optimizer) {
    return std::make_unique<libtorch::ShardedOptimizer<optim::AdamW>>(ddp, std::move(groups), defaults);
  }
  if (job.kind == Kind::fused) return std::make_unique<libtorch::FusedAdamW>(std::move(groups), defaults);
  return std::make_unique<optim::AdamW>(std::move(groups), defaults);
}

// Resumes, trains, and saves. Returns the groups' learning rates after restore().
std::vector<double> go_on(const fs::path& folder, const Job& job) {
  std::vector<double> rates;
  run_torch_ranks(job.ranks, [&](const Group& group) {
    Net net;
    for (const Layers& layers : job.groups) {
      for (const std::string& layer : layers) {
        for (const at::Tensor& parameter : net.named_children()[layer]->parameters()) parameter.set_requires_grad(true);
      }
    }
    libtorch::DistributedDataParallel<Net> ddp(net, group, {.shard = job.shard});
    Job early = job;
    early.groups.resize(job.groups.size() - job.late);
    const auto optimizer = optimizer_of(net, ddp, early);
    libtorch::GradScaler scaler;
    libtorch::Snapshots snapshots(folder, ddp, {.restore = job.restore});
    snapshots.add("optimizer", *optimizer);
    snapshots.add("scaler", scaler);
    auto groups = groups_of<optim::AdamWOptions>(net, job);
    for (std::size_t g = early.groups.size(); g < groups.size(); ++g) optimizer->add_param_group(groups[g]);
    snapshots.restore();
    if (group->rank() == 0) {
      for (auto& it : optimizer->param_groups()) rates.push_back(it.options().get_lr());
    }
    for (int step = 0; step < job.steps; ++step) {
      net.zero_grad();
      ddp.backward(job.loss_scale * ddp(random_tensor({2, 3}, 3)).square().mean());
      optimizer->step();
      snapshots.step();
    }
    snapshots.save();
  });
  return rates;
}

// The optimizer's tensors in the newest snapshot.
Tensors state_in(const fs::path& folder) {
  const checkpoint::SafetensorsFile file(folder / snapshots_in(folder).back() / "optimizer.safetensors");
  Tensors state;
  for (const auto& [name, entry] : file.tensors()) {
    at::Tensor values = at::empty(entry.shape, entry.dtype == DType::i64 ? at::kLong : at::kFloat);
    file.read(entry, {static_cast<std::byte*>(values.data_ptr()), entry.bytes});
    state[name] = values;
  }
  return state;
}

// `saved` takes two steps, `then` one without gradients, and one process without shards another: layers that were
// trained before have their moments twice decayed, the others those of two steps without gradients.
void expect_by_name(Job saved, Job then) {
  const TemporaryFolder folder;
  saved.steps = 2;
  saved.loss_scale = 100;
  go_on(folder / "run", saved);
  Job whole = saved;  // the same bits, in a file
  whole.shard = Shard::none;
  go_on(folder / "whole", whole);
  const Tensors before = state_in(folder / "whole");
  then.kind = saved.kind;
  go_on(folder / "run", then);
  go_on(folder / "run", {.groups = then.groups, .kind = saved.kind});
  const Tensors after = state_in(folder / "run");
  std::size_t states = 0;
  for (const Layers& layers : then.groups) {
    for (const std::string& layer : layers) {
      for (const std::string name : {"weight", "bias"}) {
        const std::string key = "state." + layer + "." + name + ".";
        const bool is_old = before.contains(key + "step");
        ASSERT_TRUE(after.contains(key + "step")) << key;
        EXPECT_EQ(after.at(key + "step").item<int>(), is_old ? 4 : 2) << key;
        const at::Tensor wanted =
            is_old ? before.at(key + "exp_avg") * (0.9 * 0.9) : at::zeros_like(after.at(key + "exp_avg"));
        EXPECT_TRUE(at::allclose(after.at(key + "exp_avg"), wanted, 1e-5, 0)) << key;
        EXPECT_TRUE(!is_old || wanted.abs().max().item<float>() > 0) << key;
        states += 3;
      }
    }
  }
  EXPECT_EQ(after.size(), states) << "no state of a layer that is frozen";
}

const std::vector<Layers> kMiddle{{"b", "c"}};

TEST(SnapshotNames, ALayerThatIsThawedOrFrozenKeepsTheOthersState) {
  const std::vector<std::vector<Layers>> others{{{"a", "b", "c"}}, {{"b", "c", "d"}}, {{"b"}},
                                                {{"c"}},           {{"a", "c"}},      {{"c", "b"}},
                                                {{"d", "c", "b"}}, {{"a", "d"}},      {{"a", "b", "c", "d"}}};
  for (const std::vector<Layers>& groups : others)
    expect_by_name({.groups = kMiddle}, {.groups = groups, .restore = kAny});
}

TEST(SnapshotNames, GroupsAreMatchedByTheirParameters) {
  expect_by_name({.groups = kMiddle}, {.groups = {{"b", "c"}, {"a"}}, .restore = kAny});
  expect_by_name({.groups = {{"a"}, {"b", "c"}}}, {.groups = {{"b", "c"}, {"a", "d"}}, .restore = kAny});
  expect_by_name({.groups = {{"a", "b"}, {"c"}}}, {.groups = {{"a"}, {"c", "b"}}});
  expect_by_name({.groups = {{"a"}, {"b"}, {"c"}}}, {.groups = {{"a", "b", "c"}}});
  expect_by_name({.groups = {{"a", "b", "c"}}}, {.groups = {{"c"}, {"b"}, {"a"}}});
}

TEST(SnapshotNames, GroupsThatAreAddedLateAreKept) {
  for (const Shard shard : {Shard::none, Shard::optimizer}) {
    expect_by_name({.groups = {{"a"}, {"b", "c"}, {"d"}}, .ranks = 2, .shard = shard, .late = 2},
                   {.groups = {{"d"}, {"a"}, {"b", "c"}}, .ranks = 2, .shard = shard, .late = 1});
  }
}

// A rescue has the values of the last step's end, and asks for the rest when a rank has died.
TEST(SnapshotNames, AGroupThatComesWithinAStepIsNotPartOfTheStepBefore) {
  std::vector<at::Tensor> early{at::ones({2}).requires_grad_()}, late{at::ones({3}).requires_grad_()};
  optim::SGD optimizer(early, optim::SGDOptions(0.1));
  const auto item = libtorch::optimizer_item("optimizer", optimizer, [&] {
    libtorch::ParameterNames names;
    for (const auto& group : optimizer.param_groups()) {
      names.push_back({{group.params().front().is_same(early.front()) ? "early" : "late"}});
    }
    return names;
  });
  auto before = item->values();
  optimizer.add_param_group(optim::OptimizerParamGroup(late));
  before.merge(item->fixed_values());
  EXPECT_EQ(checkpoint::get_int(before, "groups"), 1);
  EXPECT_FALSE(before.contains("param_groups.1.params"));
  auto after = item->values();
  after.merge(item->fixed_values());
  EXPECT_EQ(checkpoint::get_int(after, "groups"), 2);
  EXPECT_THAT(checkpoint::get_texts(after, "param_groups.1.params"), ::testing::ElementsAre("late"));
  EXPECT_EQ(checkpoint::get_double(after, "param_groups.1.lr"), 0.1);
}

TEST(SnapshotNames, AreThoseOfAnyNumberOfRanksWithShardsOrWithout) {
  constexpr Shard kNone = Shard::none, kShards = Shard::optimizer;
  for (const auto& [writer, reader] : {std::pair(kShards, kNone), {kNone, kShards}, {kShards, kShards}}) {
    for (const Kind kind : {Kind::adamw, Kind::fused}) {
      expect_by_name({.groups = {{"a", "b"}, {"c"}}, .ranks = 2, .shard = writer, .kind = kind},
                     {.groups = {{"c", "d"}, {"b"}}, .ranks = 3, .shard = reader, .restore = kAny});
    }
  }
}

TEST(SnapshotNames, AGroupTakesTheSettingsThatItsParametersHad) {
  const auto rates_of = [](const Job& then) {
    const TemporaryFolder folder;
    go_on(folder / "run", {.groups = {{"a"}, {"b", "c"}}, .rates = {0.1, 0.2}});
    return go_on(folder / "run", then);
  };
  using Rates = std::vector<double>;
  EXPECT_EQ(rates_of({.groups = {{"a"}, {"b", "c"}}}), (Rates{0.1, 0.2}));
  EXPECT_EQ(rates_of({.groups = {{"b", "c"}, {"a"}}}), (Rates{0.2, 0.1}));
  EXPECT_EQ(rates_of({.groups = {{"d"}, {"c", "b"}, {"a"}}, .restore = kAny}), (Rates{0.01, 0.2, 0.1}))
      << "d's are new";
  EXPECT_EQ(rates_of({.groups = {{"a", "b", "c"}}}), (Rates{0.2})) << "of most of its parameters";
}

TEST(SnapshotNames, WhatIsNotAllowedIsNamedAndChangesNothing) {
  const TemporaryFolder folder;
  go_on(folder / "run", {.groups = kMiddle});
  const auto expect_refused = [&](const Job& job, std::initializer_list<std::string_view> parts) {
    expect_text(error_of([&] { go_on(folder / "run", job); }), parts);
  };
  constexpr RestoreOptions kMissing{.allow_missing = true}, kUnexpected{.allow_unexpected = true};
  for (const RestoreOptions& restore : {RestoreOptions{}, kUnexpected}) {
    expect_refused({.groups = {{"a", "b", "c"}}, .restore = restore}, {"lacks 'a.weight', 'a.bias'", "allow_missing"});
  }
  for (const RestoreOptions& restore : {RestoreOptions{}, kMissing}) {
    expect_refused({.groups = {{"c"}}, .restore = restore}, {"has 'b.bias', 'b.weight'", "allow_unexpected"});
  }
  expect_refused({.groups = {{"a", "c"}}}, {"lacks 'a.weight'", "has 'b.bias'"});
  go_on(folder / "run", {.groups = kMiddle});
}

TEST(SnapshotNames, OfAnOptimizerWithoutStateNeedTheSameOptions) {
  const TemporaryFolder folder;
  go_on(folder / "run", {.groups = kMiddle, .steps = 0});
  expect_text(error_of([&] { go_on(folder / "run", {.groups = {{"a", "b", "c"}}}); }), {"lacks 'a.weight'"});
  go_on(folder / "run", {.groups = {{"a", "c"}}, .restore = kAny});
  EXPECT_EQ(state_in(folder / "run").at("state.a.weight.step").item<int>(), 1);
}

TEST(SnapshotNames, AnOptimizerThatIsKeptAsItsBytesFitsItsOwnParametersOnly) {
  const TemporaryFolder folder;
  go_on(folder / "run", {.groups = kMiddle, .kind = Kind::own});
  expect_text(error_of([&] {
                go_on(folder / "run", {.groups = {{"a", "b", "c"}}, .restore = kAny, .kind = Kind::own});
              }),
              {"lacks 'a.weight', 'a.bias'", "by another name"});
  go_on(folder / "run", {.groups = kMiddle, .kind = Kind::own});
}

}  // namespace
}  // namespace lockstep::testing::snapshot_names_test
