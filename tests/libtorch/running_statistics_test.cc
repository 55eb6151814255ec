// SPDX-License-Identifier: Apache-2.0
// Batch norms whose steps have fixed micro-batches: running statistics have the same bits at any number of ranks, and
// are the mean over the micro-batches. The expected values are computed here from the rows, in float64.
#include <functional>
#include <map>

#include "lockstep/data/sampler.h"
#include "lockstep/libtorch/sharded_optimizer.h"
#include "lockstep/libtorch/snapshots.h"
#include "tests/libtorch/common.h"
#include "tests/support/messages.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::running_statistics_test {
namespace {

namespace nn = ::torch::nn;
using libtorch::DistributedDataParallel;

constexpr int kMicroBatches = 8;
constexpr std::int64_t kRowsOfStep = 20;  // micro-batches of 3 rows, the seventh of 2, the eighth empty

libtorch::DdpOptions fixed(int micro_batches = kMicroBatches, std::int64_t global_batch = kRowsOfStep) {
  libtorch::DdpOptions options;
  options.reproducible = {.micro_batches = micro_batches, .global_batch = global_batch};
  return options;
}

// The rows of this rank in a step.
std::pair<std::int64_t, std::int64_t> own_rows(int rank, int ranks) {
  const data::MicroBatchRange own = data::micro_batches_of(kMicroBatches, rank, ranks);
  return {std::min<std::int64_t>(kRowsOfStep, 3 * own.begin), std::min<std::int64_t>(kRowsOfStep, 3 * own.end)};
}

Tensors state_of(const nn::Module& module) {
  Tensors state = weights_of(module);
  for (const auto& buffer : module.named_buffers()) state[buffer.key()] = buffer.value().clone();
  return state;
}

struct CnnImpl : nn::Module {
  explicit CnnImpl(const nn::BatchNormOptions& options = nn::BatchNormOptions(4))
      : over_images(register_module("over_images", nn::BatchNorm2d(options))) {}
  nn::Conv2d first = register_module("first", nn::Conv2d(nn::Conv2dOptions(1, 4, 3)));
  nn::BatchNorm2d over_images;
  nn::Linear middle = register_module("middle", nn::Linear(4 * 4 * 4, 5));
  nn::BatchNorm1d over_rows = register_module("over_rows", nn::BatchNorm1d(5));
  nn::Linear head = register_module("head", nn::Linear(5, 3));
  at::Tensor forward(const at::Tensor& x) {
    return head(over_rows(middle(at::silu(over_images(first(x))).flatten(1))));
  }
};
TORCH_MODULE(Cnn);

struct Trained {
  int ranks = 1;
  std::int64_t stop = 5;
  std::string folder = {};
  Shard shard = Shard::none;
  nn::BatchNormOptions norm = nn::BatchNormOptions(4);
  at::ScalarType dtype = at::kFloat;
};

// Weights and buffers after each step, of rank 0; all ranks must have the same.
std::vector<Tensors> record_of(const Trained& run) {
  std::vector<std::vector<Tensors>> records(static_cast<std::size_t>(run.ranks));
  run_torch_ranks(run.ranks, [&](const Group& group) {
    Cnn model(run.norm);
    initialize(*model, 4);
    model->to(run.dtype);
    libtorch::DdpOptions options = fixed();
    options.shard = run.shard;
    DistributedDataParallel ddp(model, group, options);
    ::torch::optim::Adam whole(ddp.parameters(), ::torch::optim::AdamOptions(0.01));
    std::optional<libtorch::ShardedOptimizer<::torch::optim::Adam>> in_shards;
    if (run.shard == Shard::optimizer) in_shards.emplace(ddp, ::torch::optim::AdamOptions(0.01));
    std::optional<libtorch::Snapshots> snapshots;
    if (!run.folder.empty()) {
      snapshots.emplace(run.folder, ddp, SnapshotOptions{.every = 1});
      snapshots->add("optimizer", whole);
      snapshots->restore();
    }
    const auto [first, last] = own_rows(group->rank(), run.ranks);
    while (ddp.steps() < run.stop) {
      const auto seed = static_cast<std::uint64_t>(2 * ddp.steps());
      const at::Tensor x = random_tensor({kRowsOfStep, 1, 6, 6}, seed).to(run.dtype);
      const at::Tensor y = random_classes({kRowsOfStep}, 3, seed + 1);
      model->zero_grad();
      ddp.backward(last - first, [&, first = first](std::int64_t begin, std::int64_t end) {
        return at::cross_entropy_loss(ddp(x.slice(0, first + begin, first + end)),
                                      y.slice(0, first + begin, first + end));
      });
      if (in_shards) {
        in_shards->step();
      } else {
        whole.step();
      }
      records[static_cast<std::size_t>(group->rank())].push_back(state_of(*model));
      if (snapshots) {
        snapshots->step();
        snapshots->wait();
      }
    }
  });
  for (const auto& record : records) {
    EXPECT_EQ(record.size(), records[0].size());
    for (std::size_t i = 0; i < record.size(); ++i) EXPECT_TRUE(same_bits(record[i], records[0][i]));
  }
  return records[0];
}

void expect_same(const std::vector<Tensors>& seen, const std::vector<Tensors>& wanted) {
  ASSERT_EQ(seen.size(), wanted.size());
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_TRUE(same_bits(seen[i], wanted[i])) << "after step " << i;
}

TEST(RunningStatistics, HaveTheSameBitsAtAnyNumberOfRanks) {
  struct Case {
    const char* name;
    Trained run;
  };
  const Case cases[] = {{"momentum", {}},
                        {"cumulative average", {.norm = nn::BatchNormOptions(4).momentum(torch::nullopt)}},
                        {"float64", {.dtype = at::kDouble}},
                        {"shards", {.shard = Shard::optimizer}}};
  for (const Case& it : cases) {
    SCOPED_TRACE(it.name);
    const std::vector<Tensors> alone = record_of(it.run);
    EXPECT_EQ(alone.back().at("over_rows.num_batches_tracked").item<std::int64_t>(), it.run.stop);
    for (const int ranks : {2, 3, 4, 8}) {
      SCOPED_TRACE(ranks);
      Trained run = it.run;
      run.ranks = ranks;
      expect_same(record_of(run), alone);
    }
  }
}

TEST(RunningStatistics, HaveTheSameBitsOverResumesAtOtherNumbersOfRanks) {
  const std::vector<Tensors> undisturbed = record_of({.stop = 9});
  const TemporaryFolder folder;
  std::vector<Tensors> seen;
  for (const auto& [ranks, stop] : std::vector<std::pair<int, std::int64_t>>{{3, 2}, {1, 4}, {2, 7}, {8, 9}}) {
    for (Tensors& state : record_of({.ranks = ranks, .stop = stop, .folder = folder.string()})) {
      seen.push_back(std::move(state));
    }
  }
  expect_same(seen, undisturbed);
}

// The statistics of `x` [rows, channels, values] after a step, where micro-batches of `sizes` rows are normalised.
std::pair<at::Tensor, at::Tensor> expected(const at::Tensor& x, const std::vector<std::int64_t>& sizes,
                                           double momentum) {
  at::Tensor mean = at::zeros({x.size(1)}, at::kDouble), var = at::zeros({x.size(1)}, at::kDouble);
  double values = 0, degrees = 0;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    const at::Tensor rows = x.slice(0, begin, begin + size).to(at::kDouble).transpose(0, 1).flatten(1);
    begin += size;
    const auto n = static_cast<double>(rows.size(1));
    if (n < 2) continue;
    mean += n * rows.mean(1);
    var += (n - 1) * rows.var(1, /*unbiased=*/true);
    values += n;
    degrees += n - 1;
  }
  return {momentum * mean / values, 1 - momentum + momentum * var / degrees};
}

TEST(RunningStatistics, AreTheMeanOverTheMicroBatchesWeightedByWhatEachNormalised) {
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    for (const bool has_places : {false, true}) {
      SCOPED_TRACE(has_places ? "images" : "rows");
      const at::Tensor x = has_places ? random_tensor({kRowsOfStep, 3, 2, 2}, 5) : random_tensor({kRowsOfStep, 3}, 6);
      const auto [mean, var] = expected(x.reshape({kRowsOfStep, 3, -1}), {3, 3, 3, 3, 3, 3, 2, 0}, 0.1);
      run_torch_ranks(ranks, [&, &mean = mean, &var = var](const Group& group) {
        nn::Sequential model;
        has_places ? model->push_back("norm", nn::BatchNorm2d(3)) : model->push_back("norm", nn::BatchNorm1d(3));
        DistributedDataParallel ddp(model, group, fixed());
        const auto [first, last] = own_rows(group->rank(), ranks);
        ddp.backward(last - first, [&, first = first](std::int64_t begin, std::int64_t end) {
          return ddp(x.slice(0, first + begin, first + end)).square().mean();
        });
        const Tensors state = state_of(*model);
        EXPECT_TRUE(at::allclose(state.at("norm.running_mean").to(at::kDouble), mean, 1e-5, 1e-6));
        EXPECT_TRUE(at::allclose(state.at("norm.running_var").to(at::kDouble), var, 1e-5, 1e-6));
        EXPECT_EQ(state.at("norm.num_batches_tracked").item<std::int64_t>(), 1);
      });
    }
  }
}

// A forward that writes buffers of its own.
struct Writes : nn::Module {
  at::Tensor first = register_buffer("first", at::zeros({3}));
  at::Tensor sum = register_buffer("sum", at::full({}, std::int64_t{1} << 40, at::kLong));
  at::Tensor mean = register_buffer("mean", at::ones({3}));
  at::Tensor least = register_buffer("least", at::full({3}, 0.25));
  at::Tensor most = register_buffer("most", at::full({3}, 0.25));
  at::Tensor forwards = register_buffer("forwards", at::zeros({}, at::kLong));
  at::Tensor uncounted = register_buffer("uncounted", at::zeros({}));
  at::Tensor running_mean = register_buffer("running_mean", at::zeros({}));  // without a variance: not a batch norm's
  nn::Linear linear = register_module("linear", nn::Linear(3, 4));
  at::Tensor forward(const at::Tensor& x) {
    {
      const at::NoGradGuard no_grad;
      first.copy_(x[0]);
      sum += x.size(0);
      mean.mul_(0.5).add_(x.mean(0), 0.5);
      least.copy_(at::minimum(least, std::get<0>(x.min(0))));
      most.copy_(at::maximum(most, std::get<0>(x.max(0))));
      forwards += 1;
      uncounted.data().add_(x.size(0));
      running_mean += x.size(0);
    }
    return linear(x);
  }
};

const std::map<std::string, libtorch::BufferRule> kRules{
    {"first", libtorch::BufferRule::first},     {"sum", libtorch::BufferRule::sum},
    {"mean", libtorch::BufferRule::mean},       {"least", libtorch::BufferRule::min},
    {"most", libtorch::BufferRule::max},        {"uncounted", libtorch::BufferRule::sum},
    {"running_mean", libtorch::BufferRule::sum}};

// The buffers after two steps with the rows of `x`, of the last rank, which has no rows at 8 ranks.
Tensors state_with_rules(int ranks, const at::Tensor& x) {
  Tensors state;
  run_torch_ranks(ranks, [&](const Group& group) {
    Writes model;
    initialize(model, 3);
    libtorch::DdpOptions options = fixed();
    options.buffer_rules = kRules;
    DistributedDataParallel ddp(model, group, options);
    const auto [first, last] = own_rows(group->rank(), ranks);
    for (int step = 0; step < 2; ++step) {
      model.zero_grad();
      ddp.backward(last - first, [&, first = first](std::int64_t begin, std::int64_t end) {
        return ddp(x.slice(0, first + begin, first + end)).square().mean();
      });
      model.uncounted.data().mul_(0.5);
    }
    if (group->rank() == ranks - 1) state = state_of(model);
  });
  return state;
}

TEST(WrittenBuffers, AreCombinedByTheirRules) {
  const at::Tensor x = random_tensor({kRowsOfStep, 3}, 7);
  const Tensors alone = state_with_rules(1, x);
  EXPECT_TRUE(at::equal(alone.at("first"), x[0]));
  EXPECT_EQ(alone.at("sum").item<std::int64_t>(), (std::int64_t{1} << 40) + 2 * kRowsOfStep);
  EXPECT_TRUE(at::allclose(alone.at("mean"), 0.25 + 0.75 * x.mean(0)));
  EXPECT_TRUE(at::equal(alone.at("least"), at::minimum(at::full({3}, 0.25), std::get<0>(x.min(0)))));
  EXPECT_TRUE(at::equal(alone.at("most"), at::maximum(at::full({3}, 0.25), std::get<0>(x.max(0)))));
  EXPECT_EQ(alone.at("forwards").item<std::int64_t>(), 2) << "equal in all micro-batches";
  EXPECT_EQ(alone.at("uncounted").item<float>(), (0.5f * kRowsOfStep + kRowsOfStep) / 2)
      << "torch counts no such write";
  EXPECT_EQ(alone.at("running_mean").item<float>(), 2 * kRowsOfStep);
  for (const int ranks : {2, 3, 8}) EXPECT_TRUE(same_bits(state_with_rules(ranks, x), alone)) << ranks << " ranks";
}

libtorch::DdpOptions with_rule(const std::string& name, libtorch::BufferRule rule) {
  libtorch::DdpOptions options = fixed(2, 4);
  options.buffer_rules = {{name, rule}};
  return options;
}

// Returns what a step of 4 rows in two micro-batches throws. `before` is called with a micro-batch's rows.
std::string outcome_for(
    const std::function<nn::Sequential()>& make, int ranks, const libtorch::DdpOptions& options = fixed(2, 4),
    const std::function<at::Tensor(at::Tensor)>& before = [](at::Tensor x) { return x; }) {
  return outcome_of([&] {
    run_torch_ranks(ranks, [&](const Group& group) {
      nn::Sequential module = make();
      DistributedDataParallel ddp(module, group, options);
      ddp.backward(4 / ranks, [&](std::int64_t begin, std::int64_t end) {
        return ddp(before(random_tensor({end - begin, 3}, static_cast<std::uint64_t>(begin + group->rank())))).sum();
      });
      EXPECT_EQ(ddp.last_weight(), 4);
    });
  });
}

TEST(WrittenBuffers, WithoutARuleThatSuitsAreRefused) {
  const auto make = [] { return nn::Sequential(std::make_shared<Writes>()); };
  expect_message("libtorch", "micro-batches that leave different values", outcome_for(make, 1));
  expect_text(outcome_for(make, 2),
              {"in step 0 the fixed micro-batches left different values in the buffer '0.first'"});
  expect_message("libtorch", "a rule for a buffer that is not there",
                 outcome_for(make, 1, with_rule("0.second", libtorch::BufferRule::sum)));
  expect_message("libtorch", "a mean of integers",
                 outcome_for(make, 1, with_rule("0.sum", libtorch::BufferRule::mean)));
  const std::string one_rank = outcome_of([&] {
    run_torch_ranks(2, [&](const Group& group) {
      Writes module;
      const auto rule = group->rank() == 0 ? libtorch::BufferRule::sum : libtorch::BufferRule::max;
      const DistributedDataParallel ddp(module, group, with_rule("sum", rule));
    });
  });
  expect_text(one_rank, {"Mismatch", "(written buffers, sum: sum)", "(written buffers, sum: max)"});
}

TEST(RunningStatistics, OfAnotherNetworkAreRefused) {
  const nn::BatchNormOptions without_statistics = nn::BatchNormOptions(4).track_running_stats(false);
  EXPECT_EQ(outcome_for([&] { return nn::Sequential(nn::Linear(3, 4), nn::BatchNorm1d(without_statistics)); }, 2),
            "nothing");
  nn::BatchNorm1d other(3);
  const auto alone = [] { return nn::Sequential(nn::Linear(3, 4)); };
  const auto with_other = [&](const at::Tensor& x) { return other(x).detach(); };
  expect_message("libtorch", "a batch norm of another network", outcome_for(alone, 1, fixed(2, 4), with_other));
  other->eval();
  EXPECT_EQ(outcome_for(alone, 1, fixed(2, 4), with_other), "nothing");
}

// A batch norm that calls one of torch's operators below batch_norm, as a ScriptModule does from its second run on.
struct Deeper : nn::Module {
  explicit Deeper(bool the_is_native) : is_native(the_is_native) {}
  bool is_native;
  at::Tensor mean = register_buffer("running_mean", at::zeros({3}));
  at::Tensor var = register_buffer("running_var", at::ones({3}));
  at::Tensor weight = register_parameter("weight", at::ones({3}));
  at::Tensor forward(const at::Tensor& x) {
    return is_native ? std::get<0>(at::native_batch_norm(x, weight, {}, mean, var, true, 0.1, 1e-5))
                     : std::get<0>(at::_batch_norm_impl_index(x, weight, {}, mean, var, true, 0.1, 1e-5, true));
  }
};

TEST(RunningStatistics, OfEachOperatorThatNormalisesABatch) {
  const at::Tensor x = random_tensor({kRowsOfStep, 3}, 6);
  const auto [mean, var] = expected(x.unsqueeze(2), {3, 3, 3, 3, 3, 3, 2, 0}, 0.1);
  for (const bool is_native : {false, true}) {
    for (const int ranks : {1, 3}) {
      run_torch_ranks(ranks, [&, &mean = mean, &var = var](const Group& group) {
        Deeper model(is_native);
        DistributedDataParallel ddp(model, group, fixed());
        const auto [first, last] = own_rows(group->rank(), ranks);
        ddp.backward(last - first, [&, first = first](std::int64_t begin, std::int64_t end) {
          return ddp(x.slice(0, first + begin, first + end)).square().mean();
        });
        EXPECT_TRUE(at::allclose(model.mean.to(at::kDouble), mean, 1e-5, 1e-6)) << is_native << ranks;
        EXPECT_TRUE(at::allclose(model.var.to(at::kDouble), var, 1e-5, 1e-6)) << is_native << ranks;
      });
    }
  }
}

// Returns the state after a step of 4 rows in two micro-batches; the second has a loss that needs no parameter.
Tensors state_of_constant_losses(int ranks) {
  Tensors state;
  run_torch_ranks(ranks, [&](const Group& group) {
    nn::Sequential model(nn::Linear(3, 4), nn::BatchNorm1d(4));
    initialize(*model, 3);
    DistributedDataParallel ddp(model, group, fixed(2, 4));
    ddp.backward(4 / ranks, [&](std::int64_t begin, std::int64_t end) {
      const auto first = begin + group->rank() * 4 / ranks;
      const at::Tensor y = ddp(random_tensor({end - begin, 3}, static_cast<std::uint64_t>(first)));
      return first == 0 ? y.square().mean() : at::ones({}).requires_grad_() * 2;
    });
    if (group->rank() != 0) return;
    state = state_of(*model);
    for (const auto& parameter : model->named_parameters())
      state["of " + parameter.key()] = parameter.value().grad().clone();
  });
  return state;
}

TEST(RunningStatistics, OfALossThatNeedsNoParameterAreThoseOfItsForward) {
  const Tensors alone = state_of_constant_losses(1);
  EXPECT_GT(alone.at("of 0.weight").abs().sum().item<float>(), 0);
  EXPECT_TRUE(same_bits(state_of_constant_losses(2), alone));
}

struct Instances : nn::Module {
  nn::InstanceNorm1d norm =
      register_module("norm", nn::InstanceNorm1d(nn::InstanceNorm1dOptions(3).affine(true).track_running_stats(true)));
  at::Tensor forward(const at::Tensor& x) { return norm(x.unsqueeze(2) * at::arange(1, 3)); }
};

TEST(RunningStatistics, OfAnInstanceNormNeedARule) {
  const auto make = [] { return nn::Sequential(std::make_shared<Instances>()); };
  expect_message("libtorch", "an instance norm that keeps statistics", outcome_for(make, 1));
  libtorch::DdpOptions options = fixed(2, 4);
  for (const char* name : {"0.norm.running_mean", "0.norm.running_var"}) {
    options.buffer_rules[name] = libtorch::BufferRule::mean;
  }
  EXPECT_EQ(outcome_for(make, 2, options), "nothing");
}

TEST(RunningStatistics, AreThoseBeforeAStepThatFails) {
  run_torch_ranks(1, [](const Group& group) {
    nn::Sequential model(nn::Linear(3, 4), nn::BatchNorm1d(4));
    DistributedDataParallel ddp(model, group, fixed(2, 4));
    const Tensors before = state_of(*model);
    EXPECT_THROW(ddp.backward(4,
                              [&](std::int64_t begin, std::int64_t end) {
                                const at::Tensor loss = ddp(random_tensor({end - begin, 3}, 1)).sum();
                                return begin > 0 ? throw std::runtime_error("no rows") : loss;
                              }),
                 std::runtime_error);
    EXPECT_TRUE(same_bits(state_of(*model), before));
  });
}

}  // namespace
}  // namespace lockstep::testing::running_statistics_test
