// SPDX-License-Identifier: Apache-2.0
// Several modules, and several losses in a backward, over any number of ranks: as in one process.
#include <string>

#include "lockstep/autograd/ops.h"
#include "lockstep/base/random.h"
#include "lockstep/nn/nn.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/distributed_data_parallel.h"
#include "tests/multirank/compare.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing::several_losses_test {
namespace {

constexpr int kSteps = 4;
constexpr std::int64_t kRows = 9;

Tensor normal_rows(std::uint64_t seed) {
  const Tensor result = Tensor::empty({kRows, 4});
  Generator generator(seed);
  for (float& value : result.values<float>()) value = generator.normal();
  return result;
}

struct Player : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 8));
  nn::Linear out;
  Player(std::int64_t outputs, std::uint64_t seed) : out(register_module("out", nn::Linear(8, outputs))) {
    initialize(seed);
  }
  Tensor forward(const Tensor& x) override { return out(tanh(in(x))); }
};

// A score is to be 1 of real rows, and 0 of made ones (least squares GAN, Mao et al., arXiv:1611.04076).
Tensor loss_if(const Tensor& score, float wanted) { return mse_loss(score, Tensor::full(score.shape(), wanted)); }

// One process without a DistributedDataParallel.
struct Alone {
  Player& net;
  Tensor operator()(const Tensor& x) { return net(x); }
  void backward(const Tensor& loss) { lockstep::backward(loss); }
};

// Trains a maker and its judge, in turn, each through its own `Model`.
template <typename Model>
void play(Player& maker_net, Player& judge_net, Model& maker, Model& judge, std::int64_t begin, std::int64_t end) {
  optim::SGD maker_sgd(maker_net.parameters(), {.lr = 0.2}), judge_sgd(judge_net.parameters(), {.lr = 0.2});
  for (int step = 0; step < kSteps; ++step) {
    const Tensor real = normal_rows(100 + static_cast<std::uint64_t>(step)).view_rows(begin, end);
    const Tensor noise = normal_rows(200 + static_cast<std::uint64_t>(step)).view_rows(begin, end);
    judge_sgd.zero_grad();
    const Tensor made = maker(noise).detach(), of_real = judge(real);
    judge.backward(loss_if(of_real, 1) + loss_if(judge(made), 0));
    judge_sgd.step();

    maker_sgd.zero_grad();
    maker.backward(loss_if(judge(maker(noise)), 1));
    maker_sgd.step();
  }
}

TEST(SeveralModules, OfAGanTrainAsInOneProcess) {
  Player maker(4, 1), judge(1, 2);
  const Values before = weights_of(maker);
  Alone alone_maker{maker}, alone_judge{judge};
  play(maker, judge, alone_maker, alone_judge, 0, kRows);
  EXPECT_NE(weights_of(maker), before);
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      Player own_maker(4, 1), own_judge(1, 2);
      const DdpOptions options{.buckets = {.cap_bytes = 0, .first_cap_bytes = 0}, .compare_every = 1};
      DistributedDataParallel ddp_maker(own_maker, group, options), ddp_judge(own_judge, group, options);
      const auto cut = [&](int rank) { return kRows * rank * rank / (ranks * ranks); };
      play(own_maker, own_judge, ddp_maker, ddp_judge, cut(group->rank()), cut(group->rank() + 1));
      const std::string what = std::to_string(ranks) + " ranks";
      expect_close(weights_of(own_maker), weights_of(maker), what + ", maker");
      expect_close(weights_of(own_judge), weights_of(judge), what + ", judge");
      ddp_maker.check_replicas();
      ddp_judge.check_replicas();
      EXPECT_EQ(ddp_judge.steps(), kSteps);
    });
  }
}

}  // namespace
}  // namespace lockstep::testing::several_losses_test
