// SPDX-License-Identifier: Apache-2.0
// Programs that combine features (tests/support/seam.h), trained by DistributedDataParallel on several ranks, against
// plain LibTorch with all rows in one process, or, with fixed micro-batches, against the bits of one rank.
#include <torch/optim.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/sampler.h"
#include "lockstep/libtorch/autocast.h"
#include "lockstep/libtorch/data_loader.h"
#include "lockstep/libtorch/fused_optimizers.h"
#include "lockstep/libtorch/grad_scaler.h"
#include "lockstep/libtorch/linear.h"
#include "lockstep/libtorch/sharded_optimizer.h"
#include "lockstep/libtorch/snapshots.h"
#include "tests/libtorch/common.h"
#include "tests/support/seam.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::seams_test {
namespace {

namespace nn = ::torch::nn;
namespace optim = ::torch::optim;
using libtorch::BufferRule;
using Groups = std::vector<optim::OptimizerParamGroup>;

// float64 where it can be: rounding then decides nothing. GradScaler and autocast want float32.
at::ScalarType dtype_of(const Seam& seam) { return seam.autocasts || seam.scales ? at::kFloat : at::kDouble; }

struct Net : nn::Module {
  explicit Net(const Seam& seam) : rule(static_cast<BufferRule>(rule_of(seam))), in_place(seam.seed % 2 == 1) {
    if (seam.norms) norm = register_module("norm", nn::BatchNorm2d(4));
    if (seam.rules) seen = register_buffer("seen", at::zeros({4}));
    if (seam.tied) tied = register_parameter("tied", middle->weight);
    if (seam.unused) register_module("spare", nn::Linear(3, 3));
    initialize(*this, seam.seed);
    to(dtype_of(seam));
    if (seam.frozen) set_trains(*first, false);
    if (seam.thaws) set_trains(*late, false);
    if (seam.channels_last) {
      for (at::Tensor& weight : parameters()) {
        if (weight.dim() == 4) weight.set_data(weight.contiguous(at::MemoryFormat::ChannelsLast));
      }
    }
  }
  static void set_trains(const nn::Module& module, bool trains) {
    for (at::Tensor& parameter : module.parameters()) parameter.set_requires_grad(trains);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = at::tanh(middle(at::tanh(first(x))));
    if (tied.defined()) y = at::tanh(at::conv2d(y, tied, {}, 1, 1));
    if (norm) y = norm(y);
    if (seen.defined() && is_training()) {
      const at::NoGradGuard no_grad;
      const at::Tensor values = y.mean({0, 2, 3}).to(seen.scalar_type());
      seen.copy_(rule == BufferRule::first ? values
                 : rule == BufferRule::min ? at::minimum(seen, values)
                 : rule == BufferRule::max ? at::maximum(seen, values)
                                           : seen + values);
    }
    const at::Tensor features = at::tanh(late(y)).mean({2, 3});
    return in_place ? libtorch::linear(features, last->weight, last->bias) : last(features);
  }
  BufferRule rule;
  bool in_place;  // in each second program
  nn::BatchNorm2d norm{nullptr};
  at::Tensor seen;
  nn::Conv2d first = register_module("first", nn::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1)));
  nn::Conv2d middle = register_module("middle", nn::Conv2d(nn::Conv2dOptions(4, 4, 3).padding(1)));
  nn::Conv2d late = register_module("late", nn::Conv2d(nn::Conv2dOptions(4, 4, 3).padding(1)));
  nn::Linear last = register_module("last", nn::Linear(4, 3));
  at::Tensor tied;
};

// Rows [begin, end) of a micro-batch.
at::Tensor rows_of(const Seam& seam, int step, int part, std::int64_t begin, std::int64_t end) {
  const auto seed = seam.seed * 1000 + static_cast<std::uint64_t>(10 * step + part);
  const at::Tensor rows = random_tensor({kSeamRows, 2, 4, 4}, seed).slice(0, begin, end).to(dtype_of(seam));
  return seam.channels_last ? rows.contiguous(at::MemoryFormat::ChannelsLast) : rows;
}

at::Tensor weights_of_rows(const Seam& seam, int step, int part, std::int64_t begin, std::int64_t end) {
  std::vector<double> weights;
  for (std::int64_t row = begin; row < end; ++row)
    weights.push_back(static_cast<double>(weight_of(seam, step, part, row)));
  return at::tensor(weights);
}

at::Tensor loss_of(const at::Tensor& y, const at::Tensor& weights) {
  return (weights * y.to(at::kDouble).square().mean(1)).sum() / weights.sum();
}

double clipped_to(const Seam& seam) { return seam.adam ? 0.05 : 0.2; }

// With eps of 1e-8, a gradient in float32 that is near 0 would move its weight by what its rounding decides.
optim::AdamWOptions options_for(optim::AdamW*, double rate) { return optim::AdamWOptions(rate).eps(1e-3); }
optim::SGDOptions options_for(optim::SGD*, double rate) { return optim::SGDOptions(rate).momentum(0.9); }

template <typename Base>
auto options(double rate) {
  return options_for(static_cast<Base*>(nullptr), rate);
}

// The parameters that train from the first step, each once.
std::vector<at::Tensor> first_group(const Seam& seam, const Net& net) {
  std::vector<at::Tensor> group;
  for (const auto& module :
       {net.first.ptr()->parameters(), net.middle.ptr()->parameters(), net.last.ptr()->parameters()}) {
    for (const at::Tensor& parameter : module) {
      if (parameter.requires_grad()) group.push_back(parameter);
    }
  }
  if (net.norm) group.insert(group.end(), {net.norm->weight, net.norm->bias});
  if (!seam.thaws && !seam.joins_late) {
    for (const at::Tensor& parameter : net.late->parameters()) group.push_back(parameter);
  }
  return group;
}

template <typename Base>
void change(const Seam& seam, const Net& net, auto& optimizer) {
  if (!seam.thaws && !seam.joins_late) return;
  if (seam.thaws) Net::set_trains(*net.late, true);
  using Options = decltype(options<Base>(0));
  optim::OptimizerParamGroup late(net.late->parameters(),
                                  std::make_unique<Options>(options<Base>(rate_of(seam, kSeamChange))));
  late_is_pushed(seam) ? optimizer.param_groups().push_back(late) : optimizer.add_param_group(late);
}

void set_rates(const Seam& seam, int step, Groups& groups) {
  if (seam.steps_down) return;
  for (auto& group : groups) group.options().set_lr(rate_of(seam, step));
}

// Torch's own scheduler where the program has one, after `steps` steps. Rates are the optimizer's already.
std::optional<optim::StepLR> scheduler_for(const Seam& seam, optim::Optimizer& optimizer, std::int64_t steps) {
  if (!seam.steps_down) return std::nullopt;
  optim::StepLR scheduler(optimizer, 2, 0.5);
  Groups& groups = optimizer.param_groups();
  std::vector<double> rates;
  for (auto& group : groups) rates.push_back(group.options().get_lr());
  for (std::int64_t step = 0; step < steps; ++step) scheduler.step();
  for (std::size_t i = 0; i < rates.size(); ++i) groups[i].options().set_lr(rates[i]);
  return scheduler;
}

std::vector<at::Tensor> parameters_of(const Groups& groups) {
  std::vector<at::Tensor> all;
  for (const auto& group : groups) all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

// Trains in one process of LibTorch's, without lockstep.
template <typename Base>
Tensors train_alone(const Seam& seam) {
  at::set_num_threads(1);
  Net net(seam);
  Base optimizer(Groups{{first_group(seam, net)}}, options<Base>(rate_of(seam, 0)));
  auto scheduler = scheduler_for(seam, optimizer, 0);
  for (int step = 0; step < seam.steps; ++step) {
    if (step == kSeamChange) change<Base>(seam, net, optimizer);
    set_rates(seam, step, optimizer.param_groups());
    net.zero_grad();
    const auto weights_of_part = [&](int part) { return weights_of_rows(seam, step, part, 0, kSeamRows); };
    at::Tensor total = at::zeros({}, at::kDouble);
    for (int part = 0; part < parts_of(seam); ++part) total += weights_of_part(part).sum();
    for (int part = 0; part < parts_of(seam); ++part) {
      std::optional<libtorch::Autocast> scope;
      if (seam.autocasts) scope.emplace(at::kCPU, at::kBFloat16);
      const at::Tensor y = net.forward(rows_of(seam, step, part, 0, kSeamRows));
      const at::Tensor weights = weights_of_part(part);
      (loss_of(y, weights) * (weights.sum() / total)).backward();
    }
    if (seam.clips) nn::utils::clip_grad_norm_(parameters_of(optimizer.param_groups()), clipped_to(seam));
    optimizer.step();
    if (scheduler) scheduler->step();
  }
  return weights_of(net);
}

void require_equal(const at::Tensor& seen, const at::Tensor& wanted, const std::string& what) {
  if (!at::equal(seen, wanted)) throw std::runtime_error(what + " is not that of the module");
}

// Ranks are threads, and torch has one cache of casts for all threads. If another rank clears the cache within a
// forward, the gradients of a tied weight are added in float32, not in bfloat16.
libtorch::AutocastOptions autocast_options(const Seam& seam) { return {.cache_enabled = !seam.fixed}; }

using Ddp = libtorch::DistributedDataParallel<Net>;

// The scaled loss of some rows, with an evaluation before its backward.
at::Tensor scaled_loss(const Seam& seam, Ddp& ddp, const libtorch::GradScaler& scaler, const at::Tensor& rows,
                       const at::Tensor& weights) {
  if (seam.set_weight) ddp.set_weight(weights.sum().item<std::int64_t>());
  const at::Tensor y = ddp(rows);
  if (seam.evaluates) {
    const at::NoGradGuard no_grad;
    const at::Tensor some = rows_of(seam, 0, 1, 0, 2);
    require_equal(ddp(some), ddp->forward(some), "an evaluation before backward");
  }
  return scaler.scale(loss_of(y, weights));
}

// The rows of an epoch, with their weights as targets.
struct Rows : ::torch::data::datasets::BatchDataset<Rows, ::torch::data::Example<>> {
  explicit Rows(const Seam& the_seam) : seam(the_seam) {}
  ::torch::data::Example<> get_batch(::torch::ArrayRef<std::size_t> ids) override {
    std::vector<at::Tensor> x, weights;
    for (const std::size_t id : ids) {
      const auto [step, row] = std::ldiv(static_cast<std::int64_t>(id), kSeamRows);
      x.push_back(rows_of(seam, static_cast<int>(step), 0, row, row + 1));
      weights.push_back(weights_of_rows(seam, static_cast<int>(step), 0, row, row + 1));
    }
    return {at::cat(x), at::cat(weights)};
  }
  ::torch::optional<std::size_t> size() const override { return 3 * kSeamRows + 4; }  // the last step is short
  Seam seam;
};

// A rank's rows of a step, where the program deals fixed micro-batches itself.
::torch::data::Example<> rows_by_hand(const Seam& seam, int step, const ProcessGroup& group) {
  step %= 4;
  const auto [begin, count] = data::rows_in_micro_batches(step < 3 ? kSeamRows : 4, kSeamRows, micro_batches_of(seam),
                                                          group.rank(), group.size());
  return {rows_of(seam, step, 0, begin, begin + count), weights_of_rows(seam, step, 0, begin, begin + count)};
}

// What a start of the program does on one rank.
template <typename Base, typename Optimizer>
void train_rank(const Seam& seam, const Group& group, const std::filesystem::path& folder, int until,
                const std::function<std::unique_ptr<Optimizer>(Ddp&, Groups)>& make, Tensors& weights) {
  Net net(seam);
  libtorch::DdpOptions ddp_options{.compare_every = seam.compares ? 1 : 100};
  if (seam.shards) ddp_options.shard = Shard::optimizer;
  if (seam.fixed) ddp_options.reproducible = {.micro_batches = micro_batches_of(seam), .global_batch = kSeamRows};
  if (seam.rules) ddp_options.buffer_rules["seen"] = net.rule;
  if (seam.unused && seam.seed % 2 == 0) ddp_options.unused = {"spare.weight", "spare.bias"};
  std::optional<Ddp> ddp(std::in_place, net, group, ddp_options);
  const std::unique_ptr<Optimizer> optimizer = make(*ddp, Groups{{first_group(seam, net)}});
  // Not a power of two, for which a quotient has the bits of a product with the reciprocal.
  libtorch::GradScaler scaler({.init_scale = 1000, .enabled = seam.scales});
  libtorch::DataLoader<Rows> loader(Rows(seam), *group,
                                    {.global_batch = kSeamRows,
                                     .shuffle = false,
                                     .micro_batches = micro_batches_of(seam),
                                     .audit_every = seam.audits ? 2 : 0});
  std::optional<libtorch::DataLoader<Rows>::Iterator> batches;
  if (seam.audits) ddp->watch(loader);
  std::optional<libtorch::Snapshots> snapshots;
  if (!seam.thaws) {
    const bool resumes = seam.resumes_at > 0 && until == seam.steps;
    snapshots.emplace(folder, *ddp);
    snapshots->add("optimizer", *optimizer);
    if (seam.scales) snapshots->add("scaler", scaler);
    if (seam.audits) snapshots->add("data", loader);
    // The groups of the optimizer are those of the step that the folder has.
    if (resumes && seam.resumes_at > kSeamChange) change<Base>(seam, net, *optimizer);
    snapshots->restore();
  }
  auto scheduler = scheduler_for(seam, *optimizer, ddp->steps());
  std::optional<libtorch::Autocast> around;
  if (seam.autocasts && seam.surrounds) around.emplace(at::kCPU, at::kBFloat16, autocast_options(seam));
  for (auto step = static_cast<int>(ddp->steps()); step < until; ++step) {
    if (step == kSeamChange) change<Base>(seam, net, *optimizer);
    if (step == kSeamChange && seam.thaws) {  // what trains is decided when the module is wrapped
      ddp.reset();
      ddp.emplace(net, group, ddp_options);
    }
    set_rates(seam, step, optimizer->param_groups());
    optimizer->zero_grad();
    net.zero_grad();  // of what is not in the optimizer yet
    if (seam.audits) {
      if (batches) ++*batches;
      while (!batches || *batches == loader.end()) batches.emplace(loader.begin());
    }
    if (seam.fixed) {
      const auto batch = seam.audits ? **batches : rows_by_hand(seam, step, *group);
      ddp->backward(batch.data.size(0), [&](std::int64_t begin, std::int64_t end) {
        std::optional<libtorch::Autocast> scope;
        if (seam.autocasts && !seam.surrounds) scope.emplace(at::kCPU, at::kBFloat16, autocast_options(seam));
        return scaled_loss(seam, *ddp, scaler, batch.data.slice(0, begin, end), batch.target.slice(0, begin, end));
      });
    }
    for (int part = 0; !seam.fixed && part < parts_of(seam); ++part) {
      const bool is_last = part + 1 == parts_of(seam);
      const auto cuts = cuts_of(seam, step, part, group->size());
      const auto rank = static_cast<std::size_t>(group->rank());
      std::optional<libtorch::Autocast> scope;
      if (seam.autocasts && !seam.surrounds) scope.emplace(at::kCPU, at::kBFloat16);
      const auto local = ddp->no_sync(!is_last);
      const at::Tensor rows = rows_of(seam, step, part, cuts[rank], cuts[rank + 1]);
      if (rows.size(0) == 0) {
        if (is_last) ddp->step_without_data();
        continue;
      }
      const at::Tensor of_rows = weights_of_rows(seam, step, part, cuts[rank], cuts[rank + 1]);
      scaled_loss(seam, *ddp, scaler, rows, of_rows).backward();
    }
    if (seam.clips) {
      if (seam.scales) scaler.unscale_(*optimizer);
      if constexpr (std::is_same_v<Optimizer, libtorch::ShardedOptimizer<Base>>) {
        optimizer->clip_grad_norm(clipped_to(seam));
      } else {
        nn::utils::clip_grad_norm_(parameters_of(optimizer->param_groups()), clipped_to(seam));
      }
    }
    scaler.step(*optimizer);
    scaler.update();
    if (scheduler) scheduler->step();
    if (snapshots) snapshots->step();
    if (seam.compares) ddp->check_replicas();
    if (seam.evaluates) {
      const at::NoGradGuard no_grad;
      ddp->eval();
      const at::Tensor some = rows_of(seam, 0, 2, 0, 3);
      require_equal((*ddp)(some), net.forward(some), "an evaluation after a step");
      ddp->train();
    }
  }
  if (snapshots) snapshots->save();
  ddp->check_replicas();
  if (group->rank() != static_cast<int>(seam.seed % static_cast<std::uint64_t>(group->size()))) return;
  weights = weights_of(net);
  if (!seam.fixed) return;
  weights.merge(copies_of(net.named_buffers()));
  weights["the last loss"] = at::scalar_tensor(ddp->last_loss().value(), at::kDouble);
}

template <typename Base>
Tensors train(const Seam& seam) {
  const TemporaryFolder folder;
  Tensors weights;
  const auto start = [&](int ranks, int until) {
    const auto body = [&](const Group& group) {
      using Sharded = libtorch::ShardedOptimizer<Base>;
      if (seam.shards) {
        train_rank<Base, Sharded>(
            seam, group, folder / "run", until,
            [&](auto& ddp, Groups groups) {
              return std::make_unique<Sharded>(ddp, std::move(groups), options<Base>(rate_of(seam, 0)));
            },
            weights);
      } else {
        train_rank<Base, Base>(
            seam, group, folder / "run", until,
            [&](auto&, Groups groups) {
              return std::make_unique<Base>(std::move(groups), options<Base>(rate_of(seam, 0)));
            },
            weights);
      }
    };
    run_torch_ranks(ranks, body, {.backend = seam.hosts ? "tcp" : "shm", .hosts = hosts_of(seam, ranks)});
  };
  if (seam.resumes_at > 0) start(seam.ranks, seam.resumes_at);
  start(seam.resumes_at > 0 ? seam.resumes_with : seam.ranks, seam.steps);
  return weights;
}

// Returns the first difference from the same program on one rank; empty if there is none.
template <typename Base>
std::string fault_with_fixed_micro_batches(const Seam& seam) {
  Seam alone = seam;
  alone.ranks = 1;
  alone.resumes_at = 0;
  alone.hosts = alone.audits = false;
  if (!seam.clips) alone.shards = false;  // torch's norm, without shards, is rounded otherwise
  try {
    const Tensors wanted = train<Base>(alone), seen = train<Base>(seam);
    for (const auto& [name, values] : wanted) {
      if (!at::equal(seen.at(name), values)) return fmt::format("{} has other bits than on one rank", name);
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

// What is wrong with the program; empty: nothing.
template <typename Plain, typename Base>
std::string fault_with(const Seam& seam) {
  if (seam.fixed) return fault_with_fixed_micro_batches<Base>(seam);
  Tensors wanted = train_alone<Plain>(seam), seen;
  try {
    seen = train<Base>(seam);
  } catch (const std::exception& error) {
    return error.what();
  }
  const double tolerance = seam.autocasts ? 0.1 : dtype_of(seam) == at::kFloat ? 1e-4 : 1e-9;
  const Tensors before = weights_of(Net(seam));
  for (const auto& [name, values] : wanted) {
    const at::Tensor change = values - before.at(name);
    const double apart = (seen.at(name) - values).abs().max().template item<double>();
    const double largest = change.abs().max().template item<double>();
    if (!(apart <= tolerance * largest))
      return fmt::format("{} is {:g} apart after changes up to {:g}", name, apart, largest);
  }
  return {};
}

std::string fault_of(const Seam& seam) {
  if (seam.adam) {
    return seam.fused ? fault_with<optim::AdamW, libtorch::FusedAdamW>(seam)
                      : fault_with<optim::AdamW, optim::AdamW>(seam);
  }
  return seam.fused ? fault_with<optim::SGD, libtorch::FusedSGD>(seam) : fault_with<optim::SGD, optim::SGD>(seam);
}

// Features that have no meaning together: in 16 bits AdamW takes the sign of a difference of roundings.
Seam sensible(Seam seam) {
  seam.fixed = seam.norms = seam.rules = seam.audits = false;
  if (seam.autocasts) seam.adam = false;
  if (seam.shards) seam.channels_last = seam.thaws = false;  // refused, where a shard has no one place in a file
  if (seam.thaws) seam.joins_late = false, seam.resumes_at = 0;
  return seam;
}

TEST(Seams, AnyFeaturesTogetherTrainAsOneProcess) { expect_seams_to_hold({sensible, fault_of, /*is_torchs=*/true}); }

Seam with_fixed_micro_batches(Seam seam) {
  for (const int ranks : {seam.ranks, seam.resumes_at > 0 ? seam.resumes_with : seam.ranks}) {
    const int parts = micro_batches_of(seam);
    // Audits are refused where a rank has no rows in a full batch.
    if (data::rows_in_micro_batches(kSeamRows, kSeamRows, parts, ranks - 1, ranks).count == 0) seam.audits = false;
  }
  seam.fixed = true;
  seam.ranks = std::max(seam.ranks, 2);
  seam.accumulates = seam.uneven = seam.thaws = false;
  if (seam.shards) seam.channels_last = false;
  return seam;
}

TEST(Seams, AnyFeaturesWithFixedMicroBatchesHaveTheBitsOfOneRank) {
  expect_seams_to_hold({with_fixed_micro_batches, fault_of, /*is_torchs=*/true});
}

// Drawn once in a thousand programs.
TEST(Seams, AnEvaluationWithinTheLoopsAutocastWithALateGroupInShardsTrainsAsOneProcess) {
  for (const int resumes_at : {0, 5}) {
    EXPECT_EQ(fault_of({.ranks = 3,
                        .resumes_at = resumes_at,
                        .resumes_with = 2,
                        .accumulates = true,
                        .joins_late = true,
                        .evaluates = true,
                        .shards = true,
                        .hosts = true,
                        .autocasts = true,
                        .surrounds = true,
                        .steps_down = true}),
              "");
  }
}

}  // namespace
}  // namespace lockstep::testing::seams_test
