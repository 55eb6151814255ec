// SPDX-License-Identifier: Apache-2.0
// Forwards and backwards that do not go through ddp, or go nowhere: a step, an error, or a warning.
#include <string>

#include "tests/libtorch/small_net.h"
#include "tests/libtorch/warnings.h"

namespace lockstep::testing::several_losses_test {
namespace {

// A loss that is made by the module's own forward, behind one through ddp that counts other rows.
TEST(OwnForward, BehindOneThroughDdpIsRefusedOnEveryRank) {
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, many_buckets(), [&](auto& net, auto& ddp) {
      squares(ddp(rows(0, 3))).backward();
      ddp(rows(0, 7));  // evaluates, with gradients on
      const std::string thrown = outcome_of([&] {
        ddp.group()->barrier().wait();  // nobody is in step 0 any more
        squares(net.forward(rows(0, 3))).backward();
      });
      expect_text(thrown,
                  {"the backward of step 1 did not come through the outputs of the last ddp(x)", "NoGradGuard"});
    });
  }
}

TEST(OwnForward, WithAWeightOfItsOwnIsAStep) {
  const Tensors wanted = gradients_alone({5, 2}, [](Net& net, const at::Tensor& x) { return squares(net.forward(x)); });
  on_ranks(2, {}, [&](auto& net, auto& ddp) {
    for (int step = 0; step < 2; ++step) {
      net.zero_grad();
      if (step == 1) ddp(rows(0, 7));  // evaluates, with gradients on
      const at::Tensor loss = squares(net.forward(rows(ddp.group()->rank(), ddp.group()->rank() == 0 ? 5 : 2)));
      ddp.set_weight(ddp.group()->rank() == 0 ? 5 : 2);
      loss.backward();
      expect_close(gradients_of(net), wanted, "rank " + std::to_string(ddp.group()->rank()));
    }
  });
}

void write_weights(const Net& net) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : net.parameters()) parameter.mul_(0.5);
}

TEST(NoBackward, UpdatesWithGradientsOfAutogradGradAreRefused) {
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, {}, [&](auto& net, auto& ddp) {
      int updates = 0;
      const std::string thrown = outcome_of([&] {
        for (; updates < 5; ++updates) {
          const auto parameters = net.parameters();
          const auto gradients = ::torch::autograd::grad({squares(ddp(rows(ddp.group()->rank(), 3)))}, parameters);
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
  on_ranks(2, {}, [](auto& net, auto& ddp) {
    for (int step = 0; step < 3; ++step) {
      net.zero_grad();
      for (int i = 0; i < 3; ++i) ddp(rows(0, 7));
      write_weights(net);
      for (int i = 0; i < 8; ++i) {  // writes after every other forward
        ddp(rows(0, 7));
        if (i % 2 == 0) write_weights(net);
      }
      squares(ddp(rows(ddp.group()->rank(), 3))).backward();
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
  on_ranks(2, {}, [](auto&, auto& ddp) {
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
    on_ranks(ranks, {}, [](auto&, auto& ddp) {
      for (int step = 0; step < 3; ++step) squares(ddp(rows(ddp.group()->rank(), 3)).detach());
      const at::NoGradGuard no_grad;
      ddp(rows(0, 7));
    });
    EXPECT_EQ(warnings.count("3 forwards that train, and no backward() has reached a parameter"), 1) << ranks;
  }
}

}  // namespace
}  // namespace lockstep::testing::several_losses_test
