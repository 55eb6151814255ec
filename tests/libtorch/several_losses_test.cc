// SPDX-License-Identifier: Apache-2.0
// Several modules, losses and backwards in a step, over any number of ranks: as in one process, or an error.
#include <string>
#include <vector>

#include "tests/libtorch/small_net.h"
#include "tests/libtorch/warnings.h"
#include "tests/support/nine_rows.h"

namespace lockstep::testing::several_losses_test {
namespace {

namespace nn = ::torch::nn;

struct Player : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 8));
  nn::Linear out;
  explicit Player(std::int64_t outputs) : out(register_module("out", nn::Linear(8, outputs))) {}
  at::Tensor forward(const at::Tensor& x) { return out(at::tanh(in(x))); }
};

constexpr int kSteps = 4;

at::Tensor real_rows(int step) { return random_tensor({kNineRows, 4}, 100 + static_cast<std::uint64_t>(step)); }
at::Tensor noise(int step) { return random_tensor({kNineRows, 4}, 200 + static_cast<std::uint64_t>(step)); }
at::Tensor loss_if_real(const at::Tensor& score) { return at::softplus(-score).mean(); }
at::Tensor loss_if_made(const at::Tensor& score) { return at::softplus(score).mean(); }

// Trains a generator and its judge, in turn, on rows [begin, end); `made` and `judged` call them.
template <typename Made, typename Judged>
void play(Player& maker, Player& judge, std::int64_t begin, std::int64_t end, Made made, Judged judged) {
  ::torch::optim::SGD maker_sgd(maker.parameters(), 0.2), judge_sgd(judge.parameters(), 0.2);
  for (int step = 0; step < kSteps; ++step) {
    judge_sgd.zero_grad();
    const at::Tensor of_real = judged(real_rows(step).slice(0, begin, end));
    const at::Tensor of_made = judged(made(noise(step).slice(0, begin, end)).detach());
    (loss_if_real(of_real) + loss_if_made(of_made)).backward();
    judge_sgd.step();

    maker_sgd.zero_grad();
    loss_if_real(judged(made(noise(step).slice(0, begin, end)))).backward();
    maker_sgd.step();
  }
}

TEST(SeveralModules, OfAGanTrainAsInOneProcess) {
  Player maker(4), judge(1);
  initialize(maker, 1);
  initialize(judge, 2);
  const Tensors before = weights_of(maker);
  play(
      maker, judge, 0, kNineRows, [&](const at::Tensor& z) { return maker.forward(z); },
      [&](const at::Tensor& x) { return judge.forward(x); });
  EXPECT_FALSE(same_bits(weights_of(maker), before));
  for (const int ranks : {1, 2, 3}) {
    run_torch_ranks(ranks, [&](const Group& group) {
      Player own_maker(4), own_judge(1);
      initialize(own_maker, 1);
      initialize(own_judge, 2);
      libtorch::DistributedDataParallel ddp_maker(own_maker, group, many_buckets()),
          ddp_judge(own_judge, group, many_buckets());
      const NineRowsPart part = part_of_nine(group->rank(), ranks);
      play(
          own_maker, own_judge, part.begin, part.end, [&](const at::Tensor& z) { return ddp_maker(z); },
          [&](const at::Tensor& x) { return ddp_judge(x); });
      const std::string what = std::to_string(ranks) + " ranks";
      expect_close(weights_of(own_maker), weights_of(maker), what + ", maker");
      expect_close(weights_of(own_judge), weights_of(judge), what + ", judge");
      ddp_maker.check_replicas();
      ddp_judge.check_replicas();
    });
  }
}

// Two backwards of a step are two steps of ddp's, whose gradients add up as torch's do.
TEST(SeveralLosses, EachWithABackwardOfItsOwnAddUp) {
  const std::vector<std::int64_t> counts{5, 2, 4};
  for (const Loss kind : {Loss::mean, Loss::sum}) {
    const auto total = [&](const at::Tensor& terms) { return kind == Loss::mean ? terms.mean() : terms.sum(); };
    const auto first = [&](const at::Tensor& y) { return total(y.square()); };
    const auto second = [&](const at::Tensor& y) { return total(y.abs()) * 3; };
    for (const int ranks : {1, 2, 3}) {
      const Tensors wanted = gradients_alone(
          {counts.begin(), counts.begin() + ranks},
          [&](Net& net, const at::Tensor& x) { return first(net.forward(x)) + second(net.forward(x * 2)); });
      run_torch_ranks(ranks, [&](const Group& group) {
        Net net;
        initialize(net, 1);
        libtorch::DdpOptions options = many_buckets();
        options.loss = kind;
        libtorch::DistributedDataParallel ddp(net, group, options);
        const at::Tensor x = rows(group->rank(), counts[static_cast<std::size_t>(group->rank())]);
        for (const bool set_to_none : {true, false}) {
          net.zero_grad(set_to_none);
          ddp.backward(first(ddp(x)));
          ddp.backward(second(ddp(x * 2)));
          expect_close(gradients_of(net), wanted, std::to_string(ranks) + " ranks");
        }
        EXPECT_EQ(ddp.steps(), 4);
      });
    }
  }
}

// A loss that is made by the module's own forward, behind one through ddp that counts other rows.
TEST(OwnForward, BehindOneThroughDdpIsRefusedOnEveryRank) {
  for (const int ranks : {1, 2, 3}) {
    run_torch_ranks(ranks, [&](const Group& group) {
      Net net;
      initialize(net, 1);
      libtorch::DistributedDataParallel ddp(net, group, many_buckets());
      squares(ddp(rows(0, 3))).backward();
      ddp(rows(0, 7));  // evaluates, with gradients on
      const std::string thrown = outcome_of([&] {
        group->barrier().wait();  // nobody is in step 0 any more
        squares(net.forward(rows(0, 3))).backward();
      });
      expect_text(thrown,
                  {"the backward of step 1 did not come through the outputs of the last ddp(x)", "NoGradGuard"});
    });
  }
}

TEST(OwnForward, WithAWeightOfItsOwnIsAStep) {
  const Tensors wanted = gradients_alone({5, 2}, [](Net& net, const at::Tensor& x) { return squares(net.forward(x)); });
  run_torch_ranks(2, [&](const Group& group) {
    Net net;
    initialize(net, 1);
    libtorch::DistributedDataParallel ddp(net, group);
    for (int step = 0; step < 2; ++step) {
      net.zero_grad();
      if (step == 1) ddp(rows(0, 7));  // evaluates, with gradients on
      const at::Tensor loss = squares(net.forward(rows(group->rank(), group->rank() == 0 ? 5 : 2)));
      ddp.set_weight(group->rank() == 0 ? 5 : 2);
      loss.backward();
      expect_close(gradients_of(net), wanted, "rank " + std::to_string(group->rank()));
    }
  });
}

TEST(OwnForward, APenaltyOnTheSlopeAloneCameThroughDdp) {
  const auto slope = [](const auto& forward, const at::Tensor& x) {
    const at::Tensor input = x.clone().requires_grad_();
    return ::torch::autograd::grad({forward(input).sum()}, {input}, {}, true, /*create_graph=*/true)[0]
        .square()
        .sum(1)
        .mean();
  };
  const Tensors wanted = gradients_alone({5, 2}, [&](Net& net, const at::Tensor& x) {
    return slope([&](const at::Tensor& input) { return net.forward(input); }, x);
  });
  run_torch_ranks(2, [&](const Group& group) {
    Net net;
    initialize(net, 1);
    libtorch::DistributedDataParallel ddp(net, group);
    slope([&](const at::Tensor& input) { return ddp(input); }, rows(group->rank(), group->rank() == 0 ? 5 : 2))
        .backward();
    expect_close(gradients_of(net), wanted, "rank " + std::to_string(group->rank()));
  });
}

void write_weights(const Net& net) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : net.parameters()) parameter.mul_(0.5);
}

TEST(NoBackward, UpdatesWithGradientsOfAutogradGradAreRefused) {
  for (const int ranks : {1, 2}) {
    run_torch_ranks(ranks, [&](const Group& group) {
      Net net;
      initialize(net, 1);
      libtorch::DistributedDataParallel ddp(net, group);
      int updates = 0;
      const std::string thrown = outcome_of([&] {
        for (; updates < 5; ++updates) {
          const auto parameters = net.parameters();
          const auto gradients = ::torch::autograd::grad({squares(ddp(rows(group->rank(), 3)))}, parameters);
          const at::NoGradGuard no_grad;
          for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].sub_(gradients[i], 0.1);
        }
      });
      EXPECT_EQ(updates, ranks == 1 ? 5 : 3);  // alone there is nothing to average
      if (ranks == 1) return;
      expect_text(thrown, {"InvalidArgument: DistributedDataParallel: in step 0 weights were written after each of the "
                           "last 3 forwards that train, and no backward() reached a parameter",
                           "Call backward()", "the module's own forward", "NoGradGuard"});
    });
  }
}

// Outputs that are only looked at, in training too, between any writes of a step.
TEST(NoBackward, ForwardsThatGoNowhereAreAllowed) {
  const Warnings warnings;
  run_torch_ranks(2, [](const Group& group) {
    Net net;
    initialize(net, 1);
    libtorch::DistributedDataParallel ddp(net, group);
    for (int step = 0; step < 3; ++step) {
      net.zero_grad();
      for (int i = 0; i < 3; ++i) ddp(rows(0, 7));
      write_weights(net);
      for (int i = 0; i < 8; ++i) {  // writes after every other forward
        ddp(rows(0, 7));
        if (i % 2 == 0) write_weights(net);
      }
      squares(ddp(rows(group->rank(), 3))).backward();
      ddp(rows(0, 7));  // before the update
      write_weights(net);
      net.eval();
      for (int i = 0; i < 3; ++i) {
        ddp(rows(0, 7));
        write_weights(net);
      }
      net.train();
    }
    EXPECT_EQ(ddp.steps(), 3);
    ddp.check_replicas();
  });
  EXPECT_EQ(warnings.count("no backward() has reached"), 0);
}

TEST(Weights, ThatAForwardReplacesAreToldOnce) {
  const Warnings warnings;
  run_torch_ranks(2, [](const Group& group) {
    Net net;
    libtorch::DistributedDataParallel ddp(net, group);
    for (int step = 0; step < 3; ++step) {
      const bool is_ahead = step == 2;
      if (!is_ahead) ddp(rows(0, 7));  // as an evaluation without NoGradGuard
      ddp.set_weight(70);
      squares(ddp(rows(0, 3))).backward();
      EXPECT_EQ(ddp.last_weight(), is_ahead ? 140 : 6);
    }
  });
  EXPECT_EQ(warnings.count("the rows of a forward replace the weight 70 of set_weight()"), 2) << "by rank";
}

TEST(NoBackward, AtAllIsToldAtTheEnd) {
  for (const int ranks : {1, 2}) {
    const Warnings warnings;
    run_torch_ranks(ranks, [](const Group& group) {
      Net net;
      libtorch::DistributedDataParallel ddp(net, group);
      for (int step = 0; step < 3; ++step) squares(ddp(rows(group->rank(), 3)).detach());
      const at::NoGradGuard no_grad;
      ddp(rows(0, 7));
    });
    EXPECT_EQ(warnings.count("3 forwards that train, and no backward() has reached a parameter"), 1) << ranks;
  }
}

}  // namespace
}  // namespace lockstep::testing::several_losses_test
