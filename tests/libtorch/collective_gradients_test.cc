// SPDX-License-Identifier: Apache-2.0
// Collectives that autograd goes through: the gradients of one process that has all ranks' tensors.
#include "lockstep/libtorch/collectives.h"
#include "tests/libtorch/common.h"

namespace lockstep::testing::collective_gradients_test {
namespace {

namespace nn = ::torch::nn;
using libtorch::all_gather;
using libtorch::all_gather_rows;
using libtorch::all_reduced;
using libtorch::all_to_all;
using libtorch::reduce_scatter;

const std::vector<int> kWorlds{1, 2, 3};

// What rank `rank`'s loss makes of a collective's result: another thing on every rank.
at::Tensor loss_of(int rank, const at::Tensor& result) {
  return (result * random_tensor(result.sizes(), 60 + static_cast<std::uint64_t>(rank))).sin().sum();
}

at::Tensor leaf_of(int rank, std::int64_t rows) {
  return random_tensor({rows, 3}, 20 + static_cast<std::uint64_t>(rank)).requires_grad_();
}

// `together(x, group)` is the collective, `alone(xs, r)` what rank r gets of all ranks' tensors.
void expect_gradients(const std::string& what, const std::vector<std::int64_t>& counts,
                      const std::function<at::Tensor(const at::Tensor&, const Group&)>& together,
                      const std::function<at::Tensor(const std::vector<at::Tensor>&, int)>& alone) {
  std::vector<at::Tensor> leaves;
  for (std::size_t r = 0; r < counts.size(); ++r) leaves.push_back(leaf_of(static_cast<int>(r), counts[r]));
  at::Tensor loss = at::zeros({});
  for (std::size_t r = 0; r < counts.size(); ++r) {
    loss = loss + loss_of(static_cast<int>(r), alone(leaves, static_cast<int>(r)));
  }
  loss.backward();
  run_torch_ranks(static_cast<int>(counts.size()), [&](const Group& group) {
    const auto rank = static_cast<std::size_t>(group->rank());
    const at::Tensor x = leaf_of(group->rank(), counts[rank]);
    const at::Tensor result = together(x * 1, group);
    EXPECT_TRUE(result.requires_grad());
    EXPECT_TRUE(at::allclose(result, alone(leaves, group->rank()))) << what;
    loss_of(group->rank(), result).backward();
    EXPECT_TRUE(at::allclose(x.grad(), leaves[rank].grad(), 1e-5, 1e-6)) << what << ", rank " << rank;
    EXPECT_TRUE(counts[rank] == 0 || x.grad().abs().max().item<double>() > 0);
    EXPECT_FALSE(together(x.detach(), group).requires_grad());
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(together(x, group).requires_grad());
  });
}

at::Tensor sum_of(const std::vector<at::Tensor>& tensors) { return at::stack(tensors).sum(0); }

TEST(GatherRows, HasTheRowsOfAllRanksOnRootAlone) {
  run_torch_ranks(3, [](const Group& group) {
    const at::Tensor own = at::full({2 * group->rank(), 2}, group->rank());
    const at::Tensor all = libtorch::gather_rows(own, group, 1);
    ASSERT_EQ(all.defined(), group->rank() == 1);
    if (all.defined()) {
      EXPECT_TRUE(at::equal(all, at::cat({at::full({2, 2}, 1), at::full({4, 2}, 2)})));
    }
    EXPECT_THROW(libtorch::gather_rows(at::zeros({1, 1 + group->rank()}), group), Mismatch);
  });
}

TEST(CollectiveGradients, AreThoseOfTheSumOfAllRanksLosses) {
  for (const int ranks : kWorlds) {
    const std::vector<std::int64_t> even(static_cast<std::size_t>(ranks), 6);
    const auto part = [ranks](const at::Tensor& whole, int rank) { return whole.chunk(ranks)[rank]; };
    expect_gradients(
        "all_gather", even, [](const auto& x, const Group& group) { return all_gather(x, group); },
        [](const auto& xs, int) { return at::cat(xs); });
    expect_gradients(
        "all_gather_rows", even, [](const auto& x, const Group& group) { return all_gather_rows(x, group); },
        [](const auto& xs, int) { return at::cat(xs); });
    expect_gradients(
        "all_reduced", even, [](const auto& x, const Group& group) { return all_reduced(x, group); },
        [](const auto& xs, int) { return sum_of(xs); });
    expect_gradients(
        "all_reduced avg", even, [](const auto& x, const Group& group) { return all_reduced(x, group, ReduceOp::avg); },
        [=](const auto& xs, int) { return sum_of(xs) / ranks; });
    expect_gradients(
        "reduce_scatter", even, [](const auto& x, const Group& group) { return reduce_scatter(x, group); },
        [=](const auto& xs, int rank) { return part(sum_of(xs), rank); });
    expect_gradients(
        "reduce_scatter avg", even,
        [](const auto& x, const Group& group) { return reduce_scatter(x, group, ReduceOp::avg); },
        [=](const auto& xs, int rank) { return part(sum_of(xs) / ranks, rank); });
    expect_gradients(
        "all_to_all", even, [](const auto& x, const Group& group) { return all_to_all(x, group); },
        [=](const auto& xs, int rank) {
          std::vector<at::Tensor> parts;
          for (const at::Tensor& x : xs) parts.push_back(part(x, rank));
          return at::cat(parts);
        });
  }
  expect_gradients(
      "uneven", {4, 0, 1}, [](const auto& x, const Group& group) { return all_gather_rows(x, group); },
      [](const auto& xs, int) { return at::cat(xs); });
}

TEST(CollectiveGradients, GoThroughZeroDimensions) {
  run_torch_ranks(2, [](const Group& group) {
    const at::Tensor x = at::full({}, 2.0 + group->rank()).requires_grad_();
    const at::Tensor all = all_gather(x, group);
    ASSERT_EQ(all.sizes(), at::IntArrayRef({2}));
    (all[0] * all[1]).backward();
    EXPECT_EQ(x.grad().item<double>(), 2 * (group->rank() == 0 ? 3.0 : 2.0));
  });
}

struct Encoder : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 6));
  nn::Linear out = register_module("out", nn::Linear(6, 3));
  at::Tensor temperature = register_parameter("temperature", at::full({}, 0.5));
  at::Tensor forward(const at::Tensor& x) { return out(at::tanh(in(x))); }
};

// Each own row against all rows, of which it is row `first` and the next: InfoNCE.
at::Tensor contrastive(const Encoder& net, const at::Tensor& own, const at::Tensor& all, std::int64_t first,
                       at::Reduction::Reduction reduction) {
  const at::Tensor logits = at::matmul(own, all.t()) * net.temperature.exp();
  return at::cross_entropy_loss(logits, (at::arange(own.size(0)) + first + 1) % all.size(0), {}, reduction);
}

enum class Way { ddp, weights, sum, equal_micro_batches };

at::Tensor loss_over_all(Way way, const Encoder& net, libtorch::DistributedDataParallel<Encoder>& ddp,
                         const at::Tensor& own, const Group& group, std::int64_t first) {
  switch (way) {
    case Way::ddp: return contrastive(net, own, all_gather_rows(own, ddp), first, at::Reduction::Mean);
    case Way::weights:
      return contrastive(net, own, all_gather_rows(own, group, ddp.gradient_options()), first, at::Reduction::Mean);
    case Way::equal_micro_batches: return contrastive(net, own, all_gather(own, group), first, at::Reduction::Mean);
    case Way::sum: break;
  }
  const at::Tensor all = all_gather_rows(own, group);
  return contrastive(net, own, all, first, at::Reduction::Sum) / all.size(0);
}

void expect_contrastive_like_alone(Way way, int ranks) {
  constexpr std::int64_t kRows = 12;
  constexpr int kSteps = 6;
  const auto data = [](int step) { return random_tensor({kRows, 4}, 80 + static_cast<std::uint64_t>(step)); };
  const auto optimizer_of = [](nn::Module& net) { return ::torch::optim::SGD(net.parameters(), 0.2); };
  Encoder alone;
  initialize(alone, 3);
  auto sgd = optimizer_of(alone);
  std::vector<Tensors> wanted;
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    const at::Tensor rows = alone.forward(data(step));
    contrastive(alone, rows, rows, 0, at::Reduction::Mean).backward();
    wanted.push_back(gradients_of(alone));
    sgd.step();
  }
  run_torch_ranks(ranks, [&](const Group& group) {
    Encoder net;
    initialize(net, 3);
    libtorch::DistributedDataParallel ddp(net, group, {.loss = way == Way::sum ? Loss::sum : Loss::mean});
    auto optimizer = optimizer_of(net);
    Generator random(static_cast<std::uint64_t>(ranks));
    for (int step = 0; step < kSteps; ++step) {
      auto cuts = random_cuts(random, kRows, ranks);
      if (step == 2 && ranks > 1) cuts[1] = 0;  // rank 0 has none
      if (way == Way::equal_micro_batches) {
        for (int r = 0; r <= ranks; ++r) cuts[static_cast<std::size_t>(r)] = kRows / ranks * r;
      }
      const auto r = static_cast<std::size_t>(group->rank());
      optimizer.zero_grad();
      const at::Tensor own = ddp(data(step).slice(0, cuts[r], cuts[r + 1]));
      loss_over_all(way, net, ddp, own, group, cuts[r]).backward();
      expect_close(gradients_of(net), wanted[static_cast<std::size_t>(step)],
                   "way " + std::to_string(static_cast<int>(way)) + ", " + std::to_string(ranks) + " ranks, step " +
                       std::to_string(step),
                   1e-4);
      optimizer.step();
    }
  });
}

// The temperature is a parameter of the module that the loss uses beside the gathered rows.
TEST(CollectiveGradients, AContrastiveLossTrainsAsInOneProcess) {
  for (const int ranks : kWorlds) {
    for (const Way way : {Way::ddp, Way::weights, Way::sum, Way::equal_micro_batches}) {
      expect_contrastive_like_alone(way, ranks);
    }
  }
}

// Rank 1's first gradient is behind the collective, rank 0's ahead of it.
TEST(CollectiveGradients, ARankMayLeaveOutWhatLiesBehindTheCollective) {
  const auto loss_of = [](const Encoder& net, const at::Tensor& rows, bool scaled) {
    return scaled ? rows.square().sum() * net.temperature : rows.square().sum();
  };
  Encoder alone;
  initialize(alone, 5);
  const at::Tensor rows = alone.forward(random_tensor({4, 4}, 9));
  ((loss_of(alone, rows, true) + loss_of(alone, rows, false)) / 2).backward();
  run_torch_ranks(2, [&](const Group& group) {
    Encoder net;
    initialize(net, 5);
    libtorch::DistributedDataParallel ddp(net, group, {.overlap = false});
    for (int step = 0; step < 2; ++step) {
      net.zero_grad();
      const at::Tensor own = ddp(random_tensor({4, 4}, 9).slice(0, 2 * group->rank(), 2 * group->rank() + 2));
      loss_of(net, all_gather_rows(own, ddp), group->rank() == 0).backward();
      expect_close(gradients_of(net), gradients_of(alone), "step " + std::to_string(step), 1e-5);
    }
  });
}

struct Undefined : ::torch::autograd::Function<Undefined> {
  static at::Tensor forward(::torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 2; }
  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext*,
                                                   const ::torch::autograd::variable_list&) {
    return {at::Tensor()};
  }
};

TEST(CollectiveGradients, ARankWithoutAGradientGivesZeros) {
  run_torch_ranks(2, [](const Group& group) {
    const at::Tensor x = at::ones({2}).requires_grad_();
    const at::Tensor all = all_gather(x, group);
    (group->rank() == 0 ? Undefined::apply(all) : all).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), at::ones({2})));
  });
}

TEST(CollectiveGradients, RowsWhoseLossWeighsNothingAreRefused) {
  run_torch_ranks(1, [](const Group& group) {
    Encoder net;
    libtorch::DistributedDataParallel ddp(net, group);
    const at::Tensor own = ddp(at::ones({2, 4}));
    ddp.set_weight(0);
    expect_text(
        outcome_of([&] { all_gather_rows(own, ddp).sum().backward(); }),
        {"InvalidArgument", "the backward of all_gather_rows", "has the weight 0", "6 elements", "give 0 rows"});
  });
}

TEST(CollectiveGradients, AreNotDifferentiatedAgain) {
  run_torch_ranks(1, [](const Group& group) {
    const at::Tensor x = at::ones({2}).requires_grad_();
    const at::Tensor y = all_gather(x.square(), group).square().sum();
    expect_text(outcome_of([&] { ::torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true); }),
                {"InvalidArgument", "the backward of all_gather", "create_graph"});
  });
}

}  // namespace
}  // namespace lockstep::testing::collective_gradients_test
