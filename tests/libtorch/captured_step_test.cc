// SPDX-License-Identifier: Apache-2.0
// CapturedStep over a graph that runs again: the same bits as eager steps, and the same collectives.
#include "lockstep/libtorch/captured_step.h"

#include <cmath>
#include <latch>
#include <limits>

#include "lockstep/libtorch/autocast.h"
#include "lockstep/libtorch/fused_optimizers.h"
#include "tests/libtorch/run_again.h"
#include "tests/libtorch/small_net.h"
#include "tests/libtorch/warnings.h"

namespace lockstep::testing::captured_step_test {
namespace {

namespace nn = ::torch::nn;
using ::torch::optim::SGD;
using ::torch::optim::SGDOptions;

// With running statistics, which rank 0 gives to all ahead of each forward.
struct NormNet : nn::Module {
  nn::Linear a = register_module("a", nn::Linear(4, 6));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(6));
  nn::Linear b = register_module("b", nn::Linear(6, 3));
  nn::Linear unused = register_module("unused", nn::Linear(2, 2));
  at::Tensor forward(const at::Tensor& x) { return b(at::tanh(norm(a(x)))); }
};

// A run of some steps, eager or captured, and all that it says.
struct Training {
  std::function<std::int64_t(int rank, int step)> rows = [](int rank, int) { return 3 + 2 * rank; };
  std::function<bool(int rank)> is_captured = [](int) { return true; };
  std::function<std::optional<std::int64_t>(int rank, int step)> weight = [](int, int) { return std::nullopt; };
  std::function<void(nn::Module& net, ::torch::optim::Optimizer& optimizer, int rank, int step)> between =
      [](auto&&...) {};
  std::function<std::unique_ptr<::torch::optim::Optimizer>(const std::vector<at::Tensor>&)> made_for = [](auto& all) {
    return std::make_unique<SGD>(all, SGDOptions(0.05).momentum(0.9).weight_decay(1e-3));
  };
  libtorch::DdpOptions options = many_buckets();
  at::ScalarType dtype = at::kFloat;
  int steps = 9;
};

struct Seen {
  Tensors weights;
  Tensors buffers;
  std::vector<at::Tensor> losses;     // of this rank
  std::vector<double> global_losses;  // behind each step, or -1
  std::vector<std::int64_t> total_weights;
  std::vector<std::int64_t> versions;
  std::vector<bool> was_replayed;
  int captures = 0;
  int replays = 0;
};

at::Tensor input_of(int rank, int step, std::int64_t count) {
  return random_tensor({count, 4}, static_cast<std::uint64_t>(100 * rank + step));
}

template <typename Net>
Seen train(const Training& it, const Group& group, bool captures_at_all) {
  Net net;
  initialize(net, 1);
  net.to(it.dtype);
  libtorch::DistributedDataParallel ddp(net, group, it.options);
  const auto owned = it.made_for(net.parameters());
  ::torch::optim::Optimizer& optimizer = *owned;
  const auto loss_of = [&](const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor squared = (ddp(x) - y).square();
    return it.options.loss == Loss::sum ? squared.sum() : squared.mean();
  };
  RunAgain::captures = RunAgain::replays = 0;
  libtorch::CapturedStep<decltype(loss_of), RunAgain> step(ddp, optimizer, loss_of, {.warm_up = 2});
  Seen seen;
  const int rank = group->rank();
  for (int i = 0; i < it.steps; ++i) {
    it.between(net, optimizer, rank, i);
    const at::Tensor x = input_of(rank, i, it.rows(rank, i)).to(it.dtype), y = x.slice(1, 1);
    const auto weight = it.weight(rank, i);
    at::Tensor& loss = seen.losses.emplace_back();
    if (captures_at_all && it.is_captured(rank)) {
      if (weight) step.set_weight(*weight);
      loss = step(x, y);
      seen.was_replayed.push_back(step.was_replayed());
    } else {
      net.zero_grad(true);
      loss = loss_of(x, y);
      if (weight) ddp.set_weight(*weight);
      ddp.backward(loss);
      optimizer.step();
      loss = loss.detach();
    }
    EXPECT_FALSE(loss.requires_grad());
    seen.global_losses.push_back(ddp.last_loss().value_or(-1));
    seen.total_weights.push_back(ddp.last_weight());
    EXPECT_EQ(ddp.steps(), i + 1);
  }
  ddp.check_replicas();
  seen.weights = weights_of(net);
  seen.buffers = copies_of(net.named_buffers());
  for (const at::Tensor& parameter : net.parameters()) seen.versions.push_back(parameter._version());
  seen.captures = RunAgain::captures;
  seen.replays = RunAgain::replays;
  return seen;
}

template <typename Net = NormNet>
void expect_as_eager(const Training& it, const std::string& what,
                     const std::function<void(const Group&, const Seen&)>& more = {},
                     const std::vector<int>& worlds = {1, 2, 3}) {
  for (const int ranks : worlds) {
    SCOPED_TRACE(what + ", " + std::to_string(ranks) + " ranks");
    run_torch_ranks(ranks, [&](const Group& group) {
      const Seen eager = train<Net>(it, group, false);
      const Seen captured = train<Net>(it, group, true);
      EXPECT_TRUE(same_bits(captured.weights, eager.weights)) << "rank " << group->rank();
      // Ranks that run eagerly beside a replay get rank 0's ahead of each forward.
      EXPECT_TRUE(same_bits(captured.buffers, eager.buffers));
      const auto expect_same = [](const at::Tensor& a, const at::Tensor& b) {
        EXPECT_TRUE(at::allclose(a, b, 0, 0, /*equal_nan=*/true)) << a << b;
      };
      expect_same(at::stack(captured.losses), at::stack(eager.losses));
      expect_same(at::tensor(captured.global_losses), at::tensor(eager.global_losses));
      EXPECT_EQ(captured.total_weights, eager.total_weights);
      EXPECT_EQ(captured.versions, eager.versions) << "how often each parameter was written";
      if (more) more(group, captured);
    });
  }
}

TEST(CapturedStep, TrainsToTheBitsOfEagerSteps) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const Loss loss : {Loss::mean, Loss::sum}) {
      Training it;
      it.dtype = dtype;
      it.options.loss = loss;
      expect_as_eager(it, loss == Loss::mean ? "mean" : "sum", [](const Group&, const Seen& seen) {
        EXPECT_EQ(seen.was_replayed, (std::vector<bool>{false, false, true, true, true, true, true, true, true}));
        EXPECT_EQ(seen.captures, 1);
        EXPECT_EQ(seen.replays, 7);
      });
    }
  }
}

// Gradients of 16 bits are weighed, and added up, in float32 (of the CPU).
TEST(CapturedStep, TrainsIn16BitsToTheBitsOfEagerSteps) {
  Training it;
  it.dtype = at::kBFloat16;
  expect_as_eager<Net>(it, "bfloat16");
}

TEST(CapturedStep, OneRankMayReplayWhileAnotherRunsEagerly) {
  Training it;
  it.rows = [](int rank, int step) { return rank == 1 ? 2 + step : 4; };  // never twice the same
  expect_as_eager(it, "other rows in each step",
                  [](const Group& group, const Seen& seen) { EXPECT_EQ(seen.replays > 0, group->rank() != 1); },
                  {2, 3});
  it.rows = Training().rows;
  it.is_captured = [](int rank) { return rank != 0; };
  expect_as_eager(it, "rank 0 has no captured step", {}, {2, 3});
}

TEST(CapturedStep, OtherInputsRunEagerlyAndAreLoggedOnce) {
  const Warnings warnings;
  Training it;
  it.rows = [](int rank, int step) { return step % 3 != 2 ? 4 : rank == 0 ? 3 : 0; };  // the last of three is short
  expect_as_eager<Net>(
      it, "a short batch",
      [](const Group&, const Seen& seen) {
        EXPECT_EQ(seen.was_replayed, (std::vector<bool>{false, false, false, true, true, false, true, true, false}));
      },
      {2});
  EXPECT_EQ(warnings.count("the inputs are training, float32 [3, 4] on cpu, float32 [3, 3] on cpu, but the step was "
                           "captured with training, float32 [4, 4] on cpu, float32 [4, 3] on cpu"),
            1);
  EXPECT_EQ(warnings.count("the inputs are training, float32 [0, 4] on cpu"), 1);
  EXPECT_EQ(warnings.count("runs eagerly"), 2);
}

TEST(CapturedStep, EvaluationIsAnotherKindOfStep) {
  Training it;
  it.between = [](nn::Module& net, auto&, int, int step) { net.train(step != 5); };
  expect_as_eager(it, "a step in evaluation", [](const Group&, const Seen& seen) {
    EXPECT_EQ(seen.was_replayed, (std::vector<bool>{false, false, true, true, true, false, true, true, true}));
  });
}

TEST(CapturedStep, WeightsMayDifferFromStepToStep) {
  Training it;
  it.weight = [](int rank, int step) -> std::optional<std::int64_t> {
    if (step % 4 == 3) return std::nullopt;
    return (step + rank) % 3 == 0 ? 0 : 7 + step * 3 + rank;
  };
  it.steps = 14;
  expect_as_eager(it, "weights");
}

// A rank that trains Net, by captured steps or eagerly.
struct Rank {
  using Loss = std::function<at::Tensor(const at::Tensor&)>;
  explicit Rank(const Group& the_group, int warm_up = 1, const libtorch::DdpOptions& options = {})
      : group(the_group),
        ddp((initialize(net, 1), net), group, options),
        step(ddp, optimizer, [this](const at::Tensor& x) { return loss_of(x); }, {.warm_up = warm_up}) {}
  void train(int steps) {
    for (int i = 0; i < steps; ++i) step(rows(group->rank(), 3));
  }
  void eager(const at::Tensor& x) {
    net.zero_grad(true);
    ddp.backward(loss_of(x));
    optimizer.step();
  }

  Group group;
  Net net;
  libtorch::DistributedDataParallel<Net> ddp;
  SGD optimizer{ddp.parameters(), SGDOptions(0.1).momentum(0.9)};
  Loss loss_of = [this](const at::Tensor& x) { return squares(ddp(x)); };
  libtorch::CapturedStep<Loss, RunAgain> step;
};

TEST(CapturedStep, ALossOfNoWeightMayBeNan) {
  for (const int ranks : {1, 2}) {
    run_torch_ranks(ranks, [&](const Group& group) {
      Rank it(group, 1, many_buckets());
      const bool has_none = group->rank() == group->size() - 1;
      for (int i = 0; i < 4; ++i) {
        at::Tensor x = rows(group->rank(), 3);
        if (has_none) x = x * std::numeric_limits<float>::quiet_NaN(), it.step.set_weight(0);
        EXPECT_EQ(std::isnan(it.step(x).item<double>()), has_none);
        EXPECT_EQ(it.ddp.last_weight(), 3 * (ranks - 1));
      }
      EXPECT_TRUE(it.step.was_replayed());
      for (const at::Tensor& weights : it.net.parameters()) EXPECT_TRUE(weights.isfinite().all().item<bool>());
      it.ddp.check_replicas();
    });
  }
}

// A rate of each step, and an optimizer that counts on the host.
TEST(CapturedStep, TheOptimizersNumbersMayChange) {
  Training it;
  it.between = [](nn::Module&, ::torch::optim::Optimizer& optimizer, int, int step) {
    for (auto& group : optimizer.param_groups()) group.options().set_lr(0.05 / (1 + step));
  };
  const auto captures_once = [](const Group&, const Seen& seen) { EXPECT_EQ(seen.captures, 1); };
  expect_as_eager(it, "SGD", captures_once, {2});
  it.made_for = [](auto& all) {
    return std::make_unique<libtorch::FusedAdamW>(all, ::torch::optim::AdamWOptions(0.01));
  };
  expect_as_eager(it, "FusedAdamW", captures_once, {2});
}

// A scope of autocast around the loop, in which the program evaluates too, as one within the loss.
TEST(CapturedStep, AScopeOfAutocastMaySurroundTheLoop) {
  for (const int ranks : {1, 2}) {
    run_torch_ranks(ranks, [](const Group& group) {
      const auto train = [&](bool is_outer, bool evaluates) {
        Net net;
        initialize(net, 1);
        libtorch::DistributedDataParallel ddp(net, group, many_buckets());
        SGD optimizer(ddp.parameters(), 0.1);
        const auto loss_of = [&](const at::Tensor& x) {
          std::optional<libtorch::Autocast> scope;
          if (!is_outer) scope.emplace(at::kCPU, at::kBFloat16);
          const at::Tensor decay = at::mm(x, net.side->weight.view({4, 3})).square().mean();  // ahead of the forward
          return squares(ddp(x).to(at::kFloat)) + decay.to(at::kFloat);
        };
        libtorch::CapturedStep<decltype(loss_of), RunAgain> step(ddp, optimizer, loss_of, {.warm_up = 2});
        std::optional<libtorch::Autocast> outer;
        if (is_outer) outer.emplace(at::kCPU, at::kBFloat16);
        for (int i = 0; i < 6; ++i) {
          if (evaluates) {
            const at::NoGradGuard no_grad;
            net.forward(rows(0, 2));
          }
          step(input_of(group->rank(), i, 3));
        }
        EXPECT_TRUE(step.was_replayed());
        return weights_of(net);
      };
      const Tensors wanted = train(false, false);
      EXPECT_TRUE(same_bits(train(true, false), wanted));
      EXPECT_TRUE(same_bits(train(true, true), wanted));
    });
  }
}

// A layer that the captured loss leaves out, and that of another rank does not.
TEST(CapturedStep, RanksMayUseDifferentParameters) {
  Training it;
  it.between = [](nn::Module& net, auto&, int rank, int) { dynamic_cast<Net&>(net).use_side = rank == 1; };
  expect_as_eager<Net>(it, "a layer of one rank's", [](const Group&, const Seen& seen) { EXPECT_GT(seen.replays, 0); },
                       {2});
}

TEST(CapturedStep, ANanInAReplayedStepIsToldAsEver) {
  for (const int ranks : {1, 2}) {
    const std::string told = "NaN in rank " + std::to_string(ranks - 1) + "'s gradient of '";
    for (const NotFinite reaction : {NotFinite::raise, NotFinite::tell}) {
      const Warnings warnings;
      run_torch_ranks(ranks, [&](const Group& group) {
        Rank it(group, 1, {.not_finite = reaction});
        const std::string thrown = outcome_of([&] {
          for (int i = 0; i < 5; ++i) {
            at::Tensor x = rows(group->rank(), 3);
            if (i == 3 && group->rank() == ranks - 1) x[1][2] = std::numeric_limits<float>::quiet_NaN();
            it.step(x);
          }
        });
        EXPECT_TRUE(it.step.was_replayed());
        if (reaction == NotFinite::tell) {
          EXPECT_EQ(thrown, "nothing");
        } else {
          expect_text(thrown, {told, "in step 3"});
        }
      });
      EXPECT_GE(warnings.count(told), reaction == NotFinite::tell ? 1 : 0) << ranks << " ranks";
    }
  }
}

TEST(CapturedStep, AnExceptionOfAReplayFailsTheGroup) {
  std::latch behind(2);
  run_torch_ranks(2, [&](const Group& group) {
    Rank it(group, 3);
    it.train(5);
    behind.arrive_and_wait();  // else rank 0 may hear of it in the step before
    if (group->rank() == 1)
      it.loss_of = [](const at::Tensor&) -> at::Tensor { throw std::domain_error("no more luck"); };
    const std::string text = outcome_of([&] { it.train(1); });
    expect_text(text, {"no more luck"});
    if (group->rank() == 0) expect_text(text, {"PeerLost: ", "rank 1 (host ", "failed in the backward of step 5"});
  });
}

// Of the host, beside the bits: nothing is drawn anew in a replay that an eager step would draw.
TEST(CapturedStep, NoiseIsThatOfEagerSteps) {
  struct NoisyNet : Net {
    nn::Dropout dropout = register_module("dropout", nn::Dropout(0.5));
    at::Tensor forward(const at::Tensor& x) { return dropout(Net::forward(x)); }
  };
  Training it;
  it.options.seed = 3;
  expect_as_eager<NoisyNet>(it, "dropout", {}, {1});  // ranks that are threads share one generator
}

TEST(CapturedStep, AWeightWithinItIsRefused) {
  run_torch_ranks(1, [](const Group& group) {
    Rank it(group, 2);
    it.loss_of = [&it](const at::Tensor& x) {
      const at::Tensor y = it.ddp(x);
      it.ddp.set_weight(2);
      return squares(y);
    };
    it.train(2);
    expect_text(error_of([&] { it.train(1); }),
                {"DistributedDataParallel: set_weight was called within the loss of a CapturedStep"});
  });
}

// Its forward has no tensor to count rows of, and the first steps a weight that the program gives.
TEST(CapturedStep, AReplayWithoutAWeightIsRefusedInOurWords) {
  struct Scaled : Net {
    at::Tensor forward(double factor) { return Net::forward(rows(0, 3)) * factor; }
  };
  run_torch_ranks(2, [](const Group& group) {
    Scaled net;
    libtorch::DistributedDataParallel ddp(net, group);
    SGD optimizer(ddp.parameters(), 0.1);
    const auto loss_of = [&](const at::Tensor&) { return squares(ddp(2.0)); };
    libtorch::CapturedStep<decltype(loss_of), RunAgain> step(ddp, optimizer, loss_of, {.warm_up = 2});
    const std::string text = outcome_of([&] {
      for (int i = 0; i < 3; ++i) {
        if (i < 2 || group->rank() == 0) step.set_weight(3);
        step(rows(group->rank(), 3));
      }
    });
    expect_text(
        text, {"DistributedDataParallel: backward got a gradient without a weight, in step 2"});  // rank 0 hears of it
  });
}

TEST(CapturedStep, MisuseIsRefusedInTheFirstStep) {
  const auto first = [](const libtorch::DdpOptions& options, bool forwards_twice = false, bool local = false) {
    std::string text;
    run_torch_ranks(1, [&](const Group& group) {
      Rank it(group, 3, options);
      if (forwards_twice) it.loss_of = [&it](const at::Tensor& x) { return squares(it.ddp(x)) + squares(it.ddp(x)); };
      const auto sum = it.ddp.no_sync(local);
      text = outcome_of([&] { it.train(1); });
    });
    return text;
  };
  EXPECT_EQ(first({}), "nothing");
  expect_text(first({}, true), {"InvalidArgument: CapturedStep: the loss made 2 forwards through ddp"});
  const std::string refused = "InvalidArgument: CapturedStep: step 0 is in no_sync(), or after its micro-batches, or ";
  expect_text(first({}, false, true), {refused});
  expect_text(first({.weight_outputs = true}), {refused});
  expect_text(first({.reproducible = {.micro_batches = 4, .global_batch = 8}}), {refused});
}

// With the program's own graphs: on the CPU there are none.
TEST(CapturedStep, RunsEagerlyOnTheCpuAndSaysSo) {
  const Warnings warnings;
  run_torch_ranks(2, [](const Group& group) {
    Rank it(group), eager(group);
    libtorch::CapturedStep step(it.ddp, it.optimizer, it.loss_of);
    for (int i = 0; i < 5; ++i) {
      const at::Tensor x = input_of(group->rank(), i, 3);
      step(x);
      EXPECT_FALSE(step.was_replayed());
      eager.eager(x);
    }
    EXPECT_TRUE(same_bits(weights_of(it.net), weights_of(eager.net)));
  });
  EXPECT_EQ(warnings.count("CapturedStep: runs eagerly: "), 2);
}

}  // namespace
}  // namespace lockstep::testing::captured_step_test
