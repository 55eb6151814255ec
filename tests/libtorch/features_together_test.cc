// SPDX-License-Identifier: Apache-2.0
// Features that users combine, tried in one program: an autocast scope around the loop, evaluations in it, accumulation
// over uneven rows, tied weights, a layer that joins the optimizer late, clipping, shards or early weights, and a run
// that resumes.
#include <torch/optim.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/libtorch/autocast.h"
#include "lockstep/libtorch/fused_optimizers.h"
#include "lockstep/libtorch/sharded_optimizer.h"
#include "lockstep/libtorch/snapshots.h"
#include "tests/libtorch/common.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::features_together_test {
namespace {

namespace nn = ::torch::nn;
namespace optim = ::torch::optim;
using libtorch::Autocast;

constexpr int kThawed = 3;  // the step in which the late layer joins the optimizer
constexpr int kSteps = 8;

// One of the tied weights is used in 16 bits alone: autocast's casts are the process's, so that ranks that are threads
// would have one cast of both uses, or two, by chance.
struct Tied : nn::Module {
  Tied() { initialize(*this, 1); }
  at::Tensor forward(const at::Tensor& ids) {
    return at::linear(at::tanh(late(at::tanh(early(at::embedding(table, ids))))), head);
  }
  at::Tensor table = register_parameter("table", at::zeros({8, 8}));
  nn::Linear early = register_module("early", nn::Linear(8, 8));
  nn::Linear late = register_module("late", nn::Linear(8, 8));
  at::Tensor head = register_parameter("head", table);
};

at::Tensor some_ids(std::int64_t rows, std::uint64_t seed) {
  return random_tensor({rows}, seed).mul(8).to(at::kLong).remainder(8);
}

struct Run {
  int ranks = 1;
  int until = kSteps;
  bool evaluates = false;
  bool has_scope_around_loop = false;
};

// Resumes from `folder`, trains, saves, and returns the weights.
template <typename Base>
Tensors train(const std::filesystem::path& folder, const Run& run) {
  Tensors weights;
  const bool resumes = std::filesystem::exists(folder);
  run_torch_ranks(run.ranks, [&](const Group& group) {
    Tied net;
    libtorch::DistributedDataParallel<Tied> ddp(net, group, {.shard = Shard::optimizer});
    std::vector<at::Tensor> first{net.table};
    for (const at::Tensor& parameter : net.early->parameters()) first.push_back(parameter);
    libtorch::ShardedOptimizer<Base> optimizer(ddp, {optim::OptimizerParamGroup(first)}, optim::AdamWOptions(0.01));
    const auto thaw = [&] {
      optimizer.add_param_group({net.late->parameters(), std::make_unique<optim::AdamWOptions>(0.02)});
    };
    libtorch::Snapshots snapshots(folder, ddp);
    snapshots.add("optimizer", optimizer);
    if (resumes) thaw();  // all that are saved here were saved after it
    snapshots.restore();
    std::optional<Autocast> around;
    if (run.has_scope_around_loop) around.emplace(at::kCPU, at::kBFloat16);
    for (auto step = static_cast<int>(ddp.steps()); step < run.until; ++step) {
      if (step == kThawed) thaw();
      optimizer.zero_grad();
      for (int part = 0; part < 2; ++part) {
        std::optional<Autocast> within;
        if (!run.has_scope_around_loop) within.emplace(at::kCPU, at::kBFloat16);
        if (run.evaluates) {
          const at::NoGradGuard no_grad;
          const at::Tensor ids = some_ids(2, 7);
          EXPECT_TRUE(at::equal(ddp(ids), net.forward(ids)));
        }
        const auto local = ddp.no_sync(part == 0);
        const std::int64_t rows = (group->rank() + 2 * part + step) % 3;
        const auto seed = static_cast<std::uint64_t>(100 * group->rank() + 10 * step + part);
        if (rows > 0) {
          ddp(some_ids(rows, seed)).square().mean().backward();
        } else if (part == 1) {
          ddp.step_without_data();
        }
      }
      optimizer.clip_grad_norm(0.05);
      optimizer.step();
      snapshots.step();
    }
    snapshots.save();
    ddp.check_replicas();
    if (group->rank() == 0) weights = weights_of(net);
  });
  return weights;
}

template <typename Base>
void expect_same_bits_however_it_runs() {
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    const TemporaryFolder folder;
    const Tensors wanted = train<Base>(folder / "plain", {.ranks = ranks});
    ASSERT_FALSE(wanted.empty());
    for (const bool evaluates : {false, true}) {
      for (const bool around : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "evaluates " << evaluates << ", one scope " << around);
        Run run{.ranks = ranks, .evaluates = evaluates, .has_scope_around_loop = around};
        const auto name = "run" + std::to_string(evaluates) + std::to_string(around);
        run.until = 5;
        EXPECT_FALSE(same_bits(train<Base>(folder / name, run), wanted));
        run.until = kSteps;
        EXPECT_TRUE(same_bits(train<Base>(folder / name, run), wanted));
      }
    }
    // At another number of ranks a run resumes too; sums have other bits there.
    const Tensors more = train<Base>(folder / "plain", {.ranks = ranks % 3 + 1, .until = kSteps + 4});
    const Tensors as_many = train<Base>(folder / "run00", {.ranks = ranks, .until = kSteps + 4});
    for (const auto& [parameter, values] : as_many) {
      EXPECT_TRUE(at::allclose(more.at(parameter), values, 0, 0.1)) << parameter;
      EXPECT_FALSE(at::equal(values, wanted.at(parameter))) << parameter;
    }
  }
}

// The loss is the mean over the rows that count, so that only set_weight() knows how many terms a rank has, perhaps 0.
constexpr std::int64_t kRows = 6;

struct Part {
  at::Tensor ids;
  at::Tensor counts;  // 1 or 0
};

// Rows [begin, end) of a micro-batch: of the first few rows count, of the second all but one.
Part part_of(int step, int part, std::int64_t begin = 0, std::int64_t end = kRows) {
  const at::Tensor ids = some_ids(kRows, static_cast<std::uint64_t>(10 * step + part));
  const at::Tensor counts = at::arange(kRows).lt(part == 0 ? 1 + step % 2 : kRows - 1).to(at::kFloat);
  return {ids.slice(0, begin, end), counts.slice(0, begin, end)};
}

template <typename Forward>
at::Tensor loss_sum(Forward& forward, const Part& part) {
  return forward(part.ids).to(at::kFloat).square().mean(1).mul(part.counts).sum();
}

void add_late(optim::Optimizer& optimizer, const Tied& net) {
  optimizer.add_param_group({net.late->parameters(), std::make_unique<optim::SGDOptions>(0.2)});
}

optim::SGD optimizer_without_late(const Tied& net) {
  std::vector<at::Tensor> first{net.table};
  for (const at::Tensor& parameter : net.early->parameters()) first.push_back(parameter);
  return optim::SGD(first, optim::SGDOptions(0.1).momentum(0.9));
}

void update(Tied& net, optim::Optimizer& optimizer) {
  nn::utils::clip_grad_norm_(net.parameters(), 0.3);
  optimizer.step();
}

// Trains in one process of LibTorch's, without lockstep, and returns what has changed.
Tensors changed_alone() {
  at::set_num_threads(1);
  Tied net;
  const Tensors before = weights_of(net);
  optim::SGD optimizer = optimizer_without_late(net);
  for (int step = 0; step < kSteps; ++step) {
    if (step == kThawed) add_late(optimizer, net);
    net.zero_grad();
    const at::Tensor terms = part_of(step, 0).counts.sum() + part_of(step, 1).counts.sum();
    for (int part = 0; part < 2; ++part) {
      const Autocast scope(at::kCPU, at::kBFloat16);
      const auto forward = [&](const at::Tensor& ids) { return net.forward(ids); };
      (loss_sum(forward, part_of(step, part)) / terms).backward();
    }
    update(net, optimizer);
  }
  Tensors changed = weights_of(net);
  for (auto& [name, values] : changed) values -= before.at(name);
  return changed;
}

struct WeightedRun {
  int ranks = 1;
  int until = kSteps;
  bool has_weights = true;
};

// Resumes from `folder`, trains, saves, and returns what has changed since the first run.
Tensors changed_by(const std::filesystem::path& folder, const WeightedRun& run) {
  Tensors changed;
  const bool resumes = std::filesystem::exists(folder);
  run_torch_ranks(run.ranks, [&](const Group& group) {
    Tied net;
    const Tensors before = weights_of(net);
    libtorch::DistributedDataParallel<Tied> ddp(net, group);
    optim::SGD optimizer = optimizer_without_late(net);
    libtorch::Snapshots snapshots(folder, ddp);
    snapshots.add("optimizer", optimizer);
    if (resumes) add_late(optimizer, net);
    snapshots.restore();
    const std::int64_t begin = kRows * group->rank() / run.ranks;
    const std::int64_t end = kRows * (group->rank() + 1) / run.ranks;
    for (auto step = static_cast<int>(ddp.steps()); step < run.until; ++step) {
      if (step == kThawed) add_late(optimizer, net);
      net.zero_grad();
      for (int part = 0; part < 2; ++part) {
        const Autocast scope(at::kCPU, at::kBFloat16);
        const auto local = ddp.no_sync(part == 0);
        const Part own = part_of(step, part, begin, end);
        const at::Tensor terms = own.counts.sum();
        if (run.has_weights) ddp.set_weight(terms.item<std::int64_t>());
        // Without terms the mean is NaN, which counts for nothing with a weight of 0.
        (loss_sum(ddp, own) / (run.has_weights ? terms : terms.clamp_min(1))).backward();
      }
      update(net, optimizer);
      snapshots.step();
      const at::NoGradGuard no_grad;
      const Autocast scope(at::kCPU, at::kBFloat16);
      EXPECT_TRUE(at::equal(ddp(some_ids(4, 7)), net.forward(some_ids(4, 7))));
    }
    snapshots.save();
    ddp.check_replicas();
    if (group->rank() != 0) return;
    changed = weights_of(net);
    for (auto& [name, values] : changed) values -= before.at(name);
  });
  return changed;
}

// The largest difference in a parameter, relative to its largest wanted value; NaN if there is one.
double largest_difference(const Tensors& seen, const Tensors& wanted) {
  at::Tensor largest = at::zeros({});
  for (const auto& [name, values] : wanted) {
    largest = at::maximum(largest, (seen.at(name) - values).abs().max() / values.abs().max());
  }
  return largest.item<double>();
}

TEST(FeaturesTogether, EarlyWeightsTrainAsOneProcess) {
  const Tensors wanted = changed_alone();
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    const TemporaryFolder folder;
    const Tensors seen = changed_by(folder / "whole", {.ranks = ranks});
    EXPECT_LT(largest_difference(seen, wanted), 0.01);
    EXPECT_FALSE(same_bits(changed_by(folder / "resumed", {.ranks = ranks, .until = 5}), seen));
    EXPECT_TRUE(same_bits(changed_by(folder / "resumed", {.ranks = ranks}), seen));
    // Without weights the same program trains otherwise.
    EXPECT_GT(largest_difference(changed_by(folder / "rows", {.ranks = ranks, .has_weights = false}), wanted), 0.05);
  }
}

TEST(FeaturesTogether, AdamW) { expect_same_bits_however_it_runs<optim::AdamW>(); }
TEST(FeaturesTogether, FusedAdamW) { expect_same_bits_however_it_runs<libtorch::FusedAdamW>(); }

}  // namespace
}  // namespace lockstep::testing::features_together_test
