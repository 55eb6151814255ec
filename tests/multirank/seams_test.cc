// SPDX-License-Identifier: Apache-2.0
// Programs that combine features (tests/support/seam.h), trained by DistributedDataParallel on several ranks, against
// the same tensors with all rows in one process.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/autograd/graph.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/base/random.h"
#include "lockstep/nn/nn.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/distributed_data_parallel.h"
#include "lockstep/train/snapshots.h"
#include "tests/multirank/compare.h"
#include "tests/support/rank_threads.h"
#include "tests/support/seam.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::seams_test {
namespace {

constexpr std::int64_t kWidth = 5;

struct Net : nn::Module {
  explicit Net(const Seam& seam) : is_tied(seam.tied) {
    if (seam.tied) share_parameter("tied", middle.weight());
    if (seam.unused) register_module("spare", nn::Linear(3, 3));
    initialize(seam.seed);
    if (seam.frozen) set_trains(first, false);
    if (seam.thaws) set_trains(late, false);
  }
  static void set_trains(const nn::Module& module, bool trains) {
    for (const Tensor& parameter : module.parameters()) parameter.set_requires_grad(trains);
  }
  Tensor forward(const Tensor& x) override {
    Tensor y = tanh(middle(tanh(first(x))));
    if (is_tied) y = tanh(linear(y, middle.weight(), middle.bias()));
    return last(tanh(late(y)));
  }
  nn::Linear first = register_module("first", nn::Linear(kWidth, 6));
  nn::Linear middle = register_module("middle", nn::Linear(6, 6));
  nn::Linear late = register_module("late", nn::Linear(6, 6));
  nn::Linear last = register_module("last", nn::Linear(6, 3));
  bool is_tied = false;
};

// Rows [begin, end) of a micro-batch.
Tensor rows_of(const Seam& seam, int step, int part, std::int64_t begin, std::int64_t end) {
  Generator random(seam.seed * 1000 + static_cast<std::uint64_t>(10 * step + part));
  const Tensor rows = Tensor::empty({end - begin, kWidth});
  std::vector<float> all(static_cast<std::size_t>(kSeamRows * kWidth));
  for (float& value : all) value = random.normal();
  std::copy(all.begin() + begin * kWidth, all.begin() + end * kWidth, rows.values<float>().begin());
  return rows;
}

std::int64_t weight_of_rows(const Seam& seam, int step, int part, std::int64_t begin, std::int64_t end) {
  std::int64_t sum = 0;
  for (std::int64_t row = begin; row < end; ++row) sum += weight_of(seam, step, part, row);
  return sum;
}

// The mean of squares by the rows' weights.
Tensor loss_of(const Tensor& y, const Seam& seam, int step, int part, std::int64_t begin) {
  const std::int64_t rows = y.shape()[0], columns = y.shape()[1];
  const auto all = static_cast<float>(weight_of_rows(seam, step, part, begin, begin + rows));
  const Tensor factors = Tensor::empty(y.shape());
  for (std::int64_t i = 0; i < factors.count(); ++i) {
    const auto weight = static_cast<float>(weight_of(seam, step, part, begin + i / columns));
    factors.values<float>()[static_cast<std::size_t>(i)] = std::sqrt(weight * static_cast<float>(rows) / all);
  }
  return mse_loss(mul(y, factors), Tensor::zeros(y.shape()));
}

std::unique_ptr<optim::Optimizer> optimizer_for(const Seam& seam, std::vector<Tensor> parameters) {
  if (seam.adam) return std::make_unique<optim::AdamW>(std::move(parameters), optim::AdamWOptions{.epsilon = 1e-3});
  return std::make_unique<optim::SGD>(std::move(parameters), optim::SgdOptions{.momentum = 0.9});
}

// The optimizer of what trains from the first step, and from step kSeamChange on that of the other layer.
class Optimizers {
 public:
  Optimizers(const Seam& seam, const Net& net) : seam_(seam), net_(net) {
    std::vector<Tensor> parameters;
    for (const nn::Module* const module :
         {static_cast<const nn::Module*>(&net.first), static_cast<const nn::Module*>(&net.middle),
          static_cast<const nn::Module*>(&net.last)}) {
      for (const Tensor& parameter : module->parameters()) {
        if (parameter.requires_grad()) parameters.push_back(parameter);
      }
    }
    if (!seam.thaws && !seam.joins_late) {
      for (const Tensor& parameter : net.late.parameters()) parameters.push_back(parameter);
    }
    all_.push_back(optimizer_for(seam, parameters));
    if (seam.joins_late) add_late();
  }
  void add_late() { all_.push_back(optimizer_for(seam_, net_.late.parameters())); }
  void step(int step) {
    const std::size_t count = step < kSeamChange ? 1 : all_.size();
    std::vector<Tensor> parameters;
    for (std::size_t i = 0; i < count; ++i) {
      parameters.insert(parameters.end(), all_[i]->parameters().begin(), all_[i]->parameters().end());
    }
    if (seam_.clips) optim::clip_grad_norm(parameters, 0.1);
    for (std::size_t i = 0; i < count; ++i) {
      all_[i]->set_learning_rate(rate_of(seam_, step));
      all_[i]->step();
    }
  }
  const std::vector<std::unique_ptr<optim::Optimizer>>& all() const { return all_; }

 private:
  const Seam& seam_;
  const Net& net_;
  std::vector<std::unique_ptr<optim::Optimizer>> all_;
};

Values train_alone(const Seam& seam) {
  Net net(seam);
  Optimizers optimizers(seam, net);
  for (int step = 0; step < seam.steps; ++step) {
    if (step == kSeamChange && seam.thaws) {
      Net::set_trains(net.late, true);
      optimizers.add_late();
    }
    net.zero_grad();
    const auto weight_of_part = [&](int part) {
      return static_cast<float>(weight_of_rows(seam, step, part, 0, kSeamRows));
    };
    const float all = weight_of_part(0) + (seam.accumulates ? weight_of_part(1) : 0);
    for (int part = 0; part < parts_of(seam); ++part) {
      const Tensor y = net.forward(rows_of(seam, step, part, 0, kSeamRows));
      backward(scale(loss_of(y, seam, step, part, 0), weight_of_part(part) / all));
    }
    optimizers.step(step);
  }
  return weights_of(net);
}

void require_equal(const Tensor& seen, const Tensor& wanted, const std::string& what) {
  if (seen.to_vector() != wanted.to_vector()) throw std::runtime_error(what + " is not that of the module");
}

// What a start of the program does on one rank.
void train_rank(const Seam& seam, const std::shared_ptr<ProcessGroup>& group, const std::filesystem::path& folder,
                int until, Values& weights) {
  Net net(seam);
  constexpr std::array<std::size_t, 4> kCaps{0, 64, 3000, 1 << 20};
  const std::size_t cap = kCaps[seam.seed % kCaps.size()];
  const DdpOptions options{.buckets = {.cap_bytes = cap, .first_cap_bytes = cap / 2},
                           .unused = seam.unused && seam.seed % 2 == 0
                                         ? std::vector<std::string>{"spare.weight", "spare.bias"}
                                         : std::vector<std::string>{},
                           .overlap = seam.seed % 5 != 0,
                           .compare_every = seam.compares ? 1 : 100,
                           .shard = seam.shards ? Shard::optimizer : Shard::none};
  std::optional<DistributedDataParallel> ddp(std::in_place, net, group, options);
  Optimizers optimizers(seam, net);
  std::optional<Snapshots> snapshots;
  if (seam.resumes_at > 0) {
    snapshots.emplace(folder, *ddp);
    for (std::size_t i = 0; i < optimizers.all().size(); ++i) {
      snapshots->add("optimizer" + std::to_string(i), *optimizers.all()[i]);
    }
    snapshots->restore();
  }
  for (auto step = static_cast<int>(ddp->steps()); step < until; ++step) {
    if (step == kSeamChange && seam.thaws) {  // what trains is decided when the module is wrapped
      ddp.reset();
      Net::set_trains(net.late, true);
      ddp.emplace(net, group, options);
      optimizers.add_late();
    }
    net.zero_grad();
    for (int part = 0; part < parts_of(seam); ++part) {
      const auto cuts = cuts_of(seam, step, part, group->size());
      const auto rank = static_cast<std::size_t>(group->rank());
      const auto local = ddp->no_sync(part + 1 < parts_of(seam));
      const std::int64_t rows = cuts[rank + 1] - cuts[rank];
      if (rows == 0 && part + 1 < parts_of(seam)) continue;
      if (rows == 0 && seam.seed % 3 == 0) {
        ddp->step_without_data();
        continue;
      }
      if (seam.set_weight) ddp->set_weight(weight_of_rows(seam, step, part, cuts[rank], cuts[rank + 1]));
      const Tensor y = (*ddp)(rows_of(seam, step, part, cuts[rank], cuts[rank + 1]));
      if (seam.evaluates) {
        const NoGrad guard;
        const Tensor some = rows_of(seam, 0, 1, 0, 2);
        require_equal((*ddp)(some), net.forward(some), "an evaluation before backward");
      }
      ddp->backward(loss_of(y, seam, step, part, cuts[rank]));
    }
    optimizers.step(step);
    if (snapshots) snapshots->step();
    if (seam.compares) ddp->check_replicas();
    if (seam.evaluates) {
      const NoGrad guard;
      ddp->eval();
      const Tensor some = rows_of(seam, 0, 2, 0, 3);
      require_equal((*ddp)(some), net.forward(some), "an evaluation after a step");
      ddp->train();
    }
  }
  if (snapshots) snapshots->save();
  ddp->check_replicas();
  if (group->rank() == 0) weights = weights_of(net);
}

Values train(const Seam& seam) {
  const TemporaryFolder folder;
  Values weights;
  const auto start = [&](int ranks, int until) {
    run_ranks(ranks, [&](const auto& group) { train_rank(seam, group, folder / "run", until, weights); },
              {.backend = seam.hosts ? "tcp" : "shm", .hosts = hosts_of(seam, ranks)});
  };
  if (seam.resumes_at > 0) start(seam.ranks, seam.resumes_at);
  start(seam.resumes_at > 0 ? seam.resumes_with : seam.ranks, seam.steps);
  return weights;
}

std::string fault_of(const Seam& seam) {
  const Values wanted = train_alone(seam), before = weights_of(Net(seam));
  Values seen;
  try {
    seen = train(seam);
    Seam whole = seam;
    whole.shards = false;
    if (seam.shards && train(whole) != seen) return "without shards the weights have other bits";
  } catch (const std::exception& error) {
    return error.what();
  }
  for (const auto& [name, values] : wanted) {
    float largest = 0, apart = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i] - before.at(name)[i]));
      const float distance = std::abs(values[i] - seen.at(name)[i]);
      apart = std::isnan(distance) ? INFINITY : std::max(apart, distance);
    }
    if (!(apart <= 1e-3F * largest))
      return fmt::format("{} is {:g} apart after changes up to {:g}", name, apart, largest);
  }
  return {};
}

Seam without_what_it_refuses(Seam seam) {
  seam.fused = seam.autocasts = seam.scales = seam.channels_last = seam.surrounds = seam.steps_down = seam.fixed =
      seam.norms = seam.rules = seam.audits = false;      // LibTorch's
  if (seam.shards) seam.thaws = seam.joins_late = false;  // one optimizer has all shards, and belongs to its DDP object
  if (seam.thaws) seam.joins_late = false, seam.resumes_at = 0;
  return seam;
}

TEST(Seams, AnyFeaturesTogetherTrainAsOneProcess) { expect_seams_to_hold({without_what_it_refuses, fault_of}); }

}  // namespace
}  // namespace lockstep::testing::seams_test
