// SPDX-License-Identifier: Apache-2.0
// Backwards within backwards, exceptions, and what goes when.
#include <malloc.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <thread>

#include "lockstep/comm/init/init_process_group.h"
#include "lockstep/libtorch/linear.h"
#include "lockstep/libtorch/sync_batch_norm.h"
#include "tests/libtorch/small_net.h"
#include "tests/support/warnings.h"

namespace lockstep::testing::lifetimes_test {
namespace {

namespace nn = ::torch::nn;

struct Net : nn::Module {
  nn::Linear a = register_module("a", nn::Linear(4, 4));
  nn::Linear b = register_module("b", nn::Linear(4, 4));
  nn::Linear c = register_module("c", nn::Linear(4, 4));
  std::function<at::Tensor(Net&, const at::Tensor&)> body = [](Net& net, const at::Tensor& x) {
    return net.c(at::tanh(net.b(at::tanh(net.a(x)))));
  };
  at::Tensor forward(const at::Tensor& x) { return body(*this, x); }
};

// Activation checkpointing by hand: forward without a graph, and in backward again with one.
struct Checkpoint : ::torch::autograd::Function<Checkpoint> {
  using Part = std::function<at::Tensor(const at::Tensor&)>;
  static at::Tensor forward(::torch::autograd::AutogradContext* context, const at::Tensor& x, const Part* part) {
    context->save_for_backward({x});
    context->saved_data["part"] = reinterpret_cast<std::int64_t>(part);
    return (*part)(x);
  }
  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext* context,
                                                   ::torch::autograd::variable_list gradients) {
    const at::AutoGradMode with_graph(true);
    const auto* part = reinterpret_cast<const Part*>(context->saved_data["part"].toInt());
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    ::torch::autograd::backward({(*part)(x)}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

// The part runs twice if `twice`, so that its parameters get two gradients in one backward.
void checkpointed(Net& net, std::vector<Checkpoint::Part>& parts, bool twice) {
  parts = {[&net](const at::Tensor& x) { return at::tanh(net.b(x)); }};
  net.body = [&parts, twice](Net& it, const at::Tensor& x) {
    at::Tensor y = Checkpoint::apply(at::tanh(it.a(x)), &parts[0]);
    if (twice) y = Checkpoint::apply(y, &parts[0]);
    return it.c(y);
  };
}

Tensors gradients_alone(bool twice) {
  Net net;
  initialize(net, 1);
  net.body = [twice](Net& it, const at::Tensor& x) {
    at::Tensor y = at::tanh(it.b(at::tanh(it.a(x))));
    if (twice) y = at::tanh(it.b(y));
    return it.c(y);
  };
  squares(net.forward(at::cat({rows(0, 5), rows(1, 2)}))).backward();
  return gradients_of(net);
}

TEST(Checkpointing, ByHandChangesNothing) {
  for (const bool twice : {false, true}) {
    for (const bool overlap : {false, true}) {
      if (twice && overlap) continue;
      const Tensors wanted = gradients_alone(twice);
      auto options = many_buckets();
      options.overlap = overlap;
      on_ranks<Net>(2, options, [&](auto& net, auto& ddp) {
        std::vector<Checkpoint::Part> parts;
        checkpointed(net, parts, twice);
        for (int step = 0; step < 3; ++step) {
          net.zero_grad(step == 1);
          squares(ddp(rows(ddp.group()->rank(), ddp.group()->rank() == 0 ? 5 : 2))).backward();
          EXPECT_EQ(ddp.steps(), step + 1) << "the inner backwards end no step";
          expect_close(gradients_of(net), wanted, "step " + std::to_string(step));
        }
      });
    }
  }
}

TEST(Checkpointing, OfAPartTwiceSaysWhatToSet) {
  run_torch_ranks(2, [&](const Group& group) {
    Net net;
    std::vector<Checkpoint::Part> parts;
    checkpointed(net, parts, true);
    const std::string text = outcome_of([&] {
      libtorch::DistributedDataParallel ddp(net, group, many_buckets());
      squares(ddp(rows(0, 2))).backward();
    });
    // Whoever is second hears of the first.
    expect_text(text, {"got a second gradient in one backward", "DdpOptions::overlap"});
  });
}

struct Thrower : ::torch::autograd::Function<Thrower> {
  static at::Tensor forward(::torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext*,
                                                   ::torch::autograd::variable_list) {
    throw std::domain_error("no more luck");
  }
};

at::Tensor fail(Net&, const at::Tensor&) { throw std::domain_error("no more luck"); }

// Rank 1 fails in its second step, which is caught there or not. Returns what rank 0 hears of it.
std::string heard_when(const std::function<void(Net&)>& change, bool is_caught) {
  std::string heard;
  const std::string thrown = outcome_of([&] {
    run_torch_ranks(2, [&](const Group& group) {
      Net net;
      const auto body = net.body;
      const auto train = [&](auto& ddp, int steps) {
        for (int i = 0; i < steps; ++i) squares(ddp(rows(group->rank(), 2))).backward();
      };
      if (group->rank() == 0) {
        // It may hear of it while it still makes its own.
        std::optional<libtorch::DistributedDataParallel<Net>> ddp;
        heard = outcome_of([&] {
          ddp.emplace(net, group, many_buckets());
          train(*ddp, 4);
        });
        if (!ddp) return;
        for (const auto& again :
             {std::function<void()>([&] { train(*ddp, 1); }), {[&] { ddp->step_without_data(); }}}) {
          expect_text(outcome_of(again), {"PeerLost: ", "rank 1 (host ", " of step 1: "});  // it stays
        }
        return;
      }
      libtorch::DistributedDataParallel ddp(net, group, many_buckets());
      train(ddp, 1);
      change(net);
      if (!is_caught) return train(ddp, 1);
      EXPECT_EQ(outcome_of([&] { train(ddp, 1); }), "exception: no more luck");
      net.body = body;
      expect_text(outcome_of([&] { train(ddp, 1); }), {"PeerLost", "rank 1"});
      expect_text(outcome_of([&] { ddp.step_without_data(); }), {"PeerLost", "rank 1"});
    });
  });
  EXPECT_EQ(thrown.find("no more luck") == thrown.npos, is_caught) << thrown;
  return heard;
}

TEST(Exceptions, InAForwardThatUnwindReachEveryRank) {
  expect_text(heard_when([](Net& net) { net.body = fail; }, false),
              {"PeerLost", "rank 1", "forward of step 1", "no more luck"});
}

TEST(Exceptions, InBackwardOrInAHookBeforeTheFirstGradientReachEveryRankAndStay) {
  const auto in_backward = [](Net& it, const at::Tensor& x) { return it.c(Thrower::apply(at::tanh(it.b(it.a(x))))); };
  const auto in_hook = [](Net& it, const at::Tensor& x) {
    const at::Tensor y = it.c(it.b(it.a(x)));
    y.register_hook([](const at::Tensor&) -> at::Tensor { throw std::domain_error("no more luck"); });
    return y;
  };
  for (const decltype(Net::body)& body : {decltype(Net::body)(in_backward), decltype(Net::body)(in_hook)}) {
    expect_text(heard_when([&](Net& net) { net.body = body; }, true),
                {"PeerLost", "rank 1 (host ", "failed in the backward of step 1: an exception of the program"});
  }
}

TEST(Exceptions, InForwardWhereOthersWaitInASyncBatchNormReachEveryRank) {
  std::string heard;
  run_torch_ranks(2, [&](const Group& group) {
    nn::Sequential net(nn::Linear(4, 3), libtorch::SyncBatchNorm(nn::BatchNormOptions(3)));
    const auto forward = [&](const at::Tensor& x) {
      libtorch::DistributedDataParallel ddp(net, group);  // rank 0 may hear of it while it still makes its own
      const std::string outcome = outcome_of([&] { ddp(x); });
      if (group->rank() == 0) throw std::runtime_error(outcome);
      expect_text(outcome, {"exception"});
    };
    const std::string outcome = outcome_of([&] { forward(group->rank() == 0 ? rows(0, 2) : at::zeros({2, 5})); });
    if (group->rank() == 0) heard = outcome;
  });
  expect_text(heard, {"PeerLost", "rank 1 (host ", "failed in the forward of step 0: "});
}

TEST(Exceptions, InForwardThatAreCaughtCostNothing) {
  on_ranks<Net>(2, {}, [](auto&, auto& ddp) {
    expect_text(outcome_of([&] { ddp(at::zeros({2, 3})); }), {"exception"});
    squares(ddp(rows(ddp.group()->rank(), 2))).backward();
    EXPECT_EQ(ddp.last_weight(), 4);
  });
}

// A step is as if nothing had been before it.
void expect_step(libtorch::DistributedDataParallel<Net>& ddp, Net& net) {
  net.zero_grad(true);
  squares(ddp(rows(0, 5))).backward();
  EXPECT_EQ(ddp.last_weight(), 5);
  Net other;
  initialize(other, 1);
  squares(other.forward(rows(0, 5))).backward();
  expect_close(gradients_of(net), gradients_of(other), "after it");
}

TEST(Exceptions, InAWorldOfOneLoseTheStepOnly) {
  on_ranks<Net>(1, {}, [](auto& net, auto& ddp) {
    const auto good = net.body;
    for (const bool accumulates : {false, true}) {
      net.zero_grad(true);
      net.body = [](Net& it, const at::Tensor& x) { return it.c(Thrower::apply(at::tanh(it.b(it.a(x))))); };
      {
        const auto local = ddp.no_sync(accumulates);
        expect_text(outcome_of([&] { squares(ddp(rows(0, 2))).backward(); }), {"no more luck"});
      }
      net.body = good;
      expect_step(ddp, net);
    }
  });
}

// Without buckets each gradient is looked at as it comes.
TEST(Exceptions, OfANanInAWorldOfOneLoseTheStepOnly) {
  const std::string text = "NaN in rank 0's gradient of 'c.bias' in step 1";
  for (const NotFinite reaction : {NotFinite::raise, NotFinite::tell, NotFinite::ignore}) {
    on_ranks<Net>(1, {.not_finite = reaction}, [&](auto& net, auto& ddp) {
      const Warnings warnings;
      expect_step(ddp, net);
      net.zero_grad(true);
      const double nan = std::numeric_limits<double>::quiet_NaN();
      const std::string thrown = outcome_of([&] { (ddp(rows(0, 5)).square().mean() * nan).backward(); });
      expect_text(thrown, {reaction == NotFinite::raise ? text : "nothing"});
      EXPECT_EQ(warnings.count("Reducer: " + text + ". "), reaction == NotFinite::tell ? 1 : 0);
      expect_step(ddp, net);
      EXPECT_EQ(ddp.steps(), reaction == NotFinite::raise ? 2 : 3);
    });
  }
}

// What a program leaves on stderr when nobody catches an error of LibTorch's own.
TEST(UncaughtDeathTest, AnErrorOfLibTorchsIsOneLineWithItsCauseFirst) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // LibTorch has threads
  const auto multiply = [] {
    const auto group = init_process_group({.backend = "single"});
    std::thread([] { at::ones({2, 3}).matmul(at::ones({4, 6})); }).join();  // outside of the framework's try blocks
  };
  EXPECT_EXIT(multiply(), ::testing::ExitedWithCode(1),
              "fatal: (mm: )?mat1 and mat2 shapes cannot be multiplied \\(2x3 and 4x6\\)\n$");
}

TEST(End, InAnyOrder) {
  run_torch_ranks(2, [](const Group& the_group) {
    Group group = the_group;
    using Ddp = libtorch::DistributedDataParallel<Net>;
    auto net = std::make_shared<Net>();
    const at::Tensor weight = net->a->weight;
    // The module goes first.
    auto ddp = std::make_unique<Ddp>(*net, group);
    (*ddp)(rows(group->rank(), 2)).square().mean().backward();
    at::Tensor kept = weight.grad();
    const at::Tensor values = kept.clone();
    net.reset();
    ddp.reset();
    EXPECT_TRUE(at::equal(kept, values)) << "the arena's memory, held by a tensor";
    EXPECT_TRUE(at::equal(weight.grad(), values));
    EXPECT_NE(weight.grad().data_ptr(), kept.data_ptr()) << "the module's own";

    // The wrapper goes first; the module trains on alone, and is wrapped again. A graph outlives all of it.
    net = std::make_shared<Net>();
    ddp = std::make_unique<Ddp>(net, group);
    at::Tensor loss = (*ddp)(rows(group->rank(), 2)).square().mean();
    ddp.reset();
    loss.backward();
    squares(net->forward(rows(group->rank(), 2))).backward();
    EXPECT_TRUE(net->a->weight.grad().defined());
    net->zero_grad(true);
    {
      Ddp again(net, group);
      Ddp twice(std::make_shared<Net>(), group);  // a second one beside it
      squares(again(rows(group->rank(), 2))).backward();
      EXPECT_EQ(again.steps(), 1);
      EXPECT_EQ(twice.steps(), 0);
      loss = again(rows(group->rank(), 2)).square().mean();
    }
    net.reset();
    group->barrier().wait();
    group.reset();
    loss.backward();
  });
}

// What this process holds, in bytes.
struct Held {
  std::size_t heap = 0;      // given out by malloc
  std::size_t resident = 0;  // in memory
  std::size_t shared = 0;    // mappings of shared memory: arenas and control blocks
};

Held held() {
  Held result;
  result.heap = mallinfo2().uordblks;
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0;
  statm >> pages >> result.resident;
  result.resident *= static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:") == std::string::npos) continue;
    std::size_t end = 0;
    const std::size_t begin = std::stoull(line, &end, 16);
    result.shared += std::stoull(line.substr(end + 1), nullptr, 16) - begin;
  }
  return result;
}

// LOCKSTEP_SOAK_STEPS sets how long; scripts/test --extra soak libtorch takes 10,000.
TEST(Memory, IsFlat) {
  const char* text = std::getenv("LOCKSTEP_SOAK_STEPS");
  const int count = text == nullptr ? 400 : std::atoi(text);
  ASSERT_GT(count, 0) << "LOCKSTEP_SOAK_STEPS is not a number of steps";
  on_ranks<Net>(2, many_buckets(), [count](auto& net, auto& ddp) {
    ProcessGroup& group = *ddp.group();
    // The last layer's gradient is computed in its place, the others are copied.
    net.body = [](Net& of, const at::Tensor& x) {
      return libtorch::linear(at::tanh(of.b(at::tanh(of.a(x)))), of.c->weight, of.c->bias);
    };
    ::torch::optim::Adam optimizer(net.parameters(), ::torch::optim::AdamOptions(1e-4));
    const auto steps = [&](int number) {
      for (int i = 0; i < number; ++i) {
        net.zero_grad(i % 3 == 0);
        if (i % 4 == 0) {
          const auto local = ddp.no_sync();
          net.zero_grad(true);
          squares(ddp(rows(group.rank(), 2))).backward();
        }
        squares(ddp(rows(group.rank(), 2))).backward();
        optimizer.step();
      }
    };
    const auto held_between_barriers = [&] {
      group.barrier().wait();
      const Held result = held();
      group.barrier().wait();
      return result;
    };
    steps(100);
    const Held before = held_between_barriers();
    for (int part = 1; part <= 4; ++part) {
      steps(count / 4);
      const Held after = held_between_barriers();
      // 400 steps of as little as 100 bytes each would show.
      EXPECT_LT(after.heap, before.heap + 40'000);
      EXPECT_EQ(after.shared, before.shared);
      // malloc may take another piece from the kernel once; 1 KiB per step of 10,000 would show.
      EXPECT_LT(after.resident, before.resident + (8 << 20));
    }
  });
}

}  // namespace
}  // namespace lockstep::testing::lifetimes_test
