// SPDX-License-Identifier: Apache-2.0
// What may lie between a forward and an optimizer's step.
#include <array>
#include <filesystem>
#include <thread>

#include "tests/libtorch/small_net.h"
#include "tests/libtorch/warnings.h"

namespace lockstep::testing::behaviour_test {
namespace {

// The same loss on 2 ranks of 5 and 2 rows equals that of one process.
void expect_like_alone(
    const std::function<at::Tensor(const std::function<at::Tensor(at::Tensor)>&, Net&, at::Tensor)>& loss,
    const libtorch::DdpOptions& options = many_buckets()) {
  const std::vector<std::int64_t> counts{5, 2};
  const Tensors wanted = gradients_alone(counts, [&](Net& net, const at::Tensor& x) {
    return loss([&](const at::Tensor& input) { return net.forward(input); }, net, x);
  });
  run_torch_ranks(2, [&](const Group& group) {
    Net net;
    initialize(net, 1);
    libtorch::DistributedDataParallel ddp(net, group, options);
    loss([&](const at::Tensor& input) { return ddp(input); }, net,
         rows(group->rank(), counts[static_cast<std::size_t>(group->rank())]))
        .backward();
    expect_close(gradients_of(net), wanted, "rank " + std::to_string(group->rank()));
  });
}

TEST(Gradients, OfOutputsChangedInPlace) {
  expect_like_alone([](const auto& forward, Net&, const at::Tensor& x) {
    at::Tensor y = forward(x);
    y.mul_(2).add_(1).unsqueeze_(0).squeeze_(0);
    return squares(y.tanh_());
  });
}

TEST(Gradients, OfPartsOfTheOutputs) {
  expect_like_alone([](const auto& forward, Net&, const at::Tensor& x) { return squares(forward(x).select(1, 2)); });
}

// Its gradient does not come through the outputs, and counts like the rest of the loss.
TEST(Gradients, OfAPenaltyOnTheParameters) {
  expect_like_alone([](const auto& forward, Net& net, const at::Tensor& x) {
    return squares(forward(x)) + net.a->weight.square().sum() * 0.1;
  });
}

TEST(Gradients, OfAPenaltyOnTheGradientOfTheInput) {
  expect_like_alone([](const auto& forward, Net&, const at::Tensor& x) {
    const at::Tensor input = x.clone().requires_grad_();
    const at::Tensor slope =
        ::torch::autograd::grad({forward(input).sum()}, {input}, {}, true, /*create_graph=*/true)[0];
    return slope.square().sum(1).mean() + squares(forward(x));
  });
}

TEST(Gradients, OfTwoForwardsInOneLoss) {
  expect_like_alone([](const auto& forward, Net&, const at::Tensor& x) {
    const at::Tensor first = forward(x);
    return squares(first + forward(x * 2));
  });
}

TEST(Gradients, AddUpOverTwoBackwardsOfOneGraph) {
  const Tensors wanted = gradients_alone({5, 2}, [](Net& net, const at::Tensor& x) {
    const at::Tensor y = net.forward(x);
    return squares(y) + y.abs().mean();
  });
  run_torch_ranks(2, [&](const Group& group) {
    Net net;
    initialize(net, 1);
    libtorch::DistributedDataParallel ddp(net, group);
    const at::Tensor y = ddp(rows(group->rank(), group->rank() == 0 ? 5 : 2));
    squares(y).backward({}, /*retain_graph=*/true);
    y.abs().mean().backward();
    expect_close(gradients_of(net), wanted, "both");
    EXPECT_EQ(ddp.steps(), 2);
  });
}

TEST(Gradients, AreViewsOfOneArenaFromTheFirstBackwardOn) {
  run_torch_ranks(2, [](const Group& group) {
    Net net;
    libtorch::DistributedDataParallel ddp(net, group);
    std::map<std::string, void*> addresses;
    for (int step = 0; step < 4; ++step) {
      squares(ddp(rows(group->rank(), 3))).backward();
      for (const auto& item : net.named_parameters()) {
        void* address = item.value().grad().data_ptr();
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % 64, 0u);
        if (step == 0) addresses[item.key()] = address;
        EXPECT_EQ(address, addresses[item.key()]) << item.key();
      }
      net.zero_grad(/*set_to_none=*/step % 2 == 0);
    }
    // All within the bytes that the gradients need.
    const auto [low, high] = std::minmax_element(addresses.begin(), addresses.end(),
                                                 [](const auto& a, const auto& b) { return a.second < b.second; });
    EXPECT_LT(static_cast<char*>(high->second) - static_cast<char*>(low->second), 1024);
  });
}

// By order, not by time: each bucket was launched before the next gradient was there.
TEST(Gradients, LeaveWhileBackwardRunsInTheOrderOfTheGraph) {
  run_torch_ranks(2, [](const Group& group) {
    Net net;
    libtorch::DistributedDataParallel ddp(net, group, many_buckets());
    for (int step = 0; step < 3; ++step) {
      squares(ddp(rows(group->rank(), 3))).backward();
      const trace::StepRecord& record = ddp.last_step();
      EXPECT_EQ(record.step, step);
      EXPECT_EQ(record.gradients_ready, 6);
      ASSERT_EQ(record.buckets.size(), 7u) << "one per parameter, and which are used";
      for (int i = 0; i < 6; ++i) EXPECT_EQ(record.buckets[static_cast<std::size_t>(i)].gradients_ready, i + 1);
    }
  });
}

at::Tensor loss_of(const at::Tensor& y, Loss kind) { return kind == Loss::mean ? squares(y) : y.square().sum(); }

// Steps on top of a gradient that was there before the first; the second leaves a layer out.
void add_up(Net& net, const std::function<at::Tensor(const at::Tensor&)>& forward, const at::Tensor& x, Loss kind) {
  for (at::Tensor& parameter : net.parameters()) parameter.mutable_grad() = at::ones_like(parameter);
  for (int step = 0; step < 3; ++step) {
    net.use_side = step != 1;
    loss_of(forward(x * (step + 1)), kind).backward();
  }
}

TEST(Gradients, WithoutZeroGradAddUpAsInOneProcess) {
  const std::vector<std::vector<std::int64_t>> partitions{{7}, {5, 2}, {5, 0, 2}};
  for (const Loss kind : {Loss::mean, Loss::sum}) {
    for (const auto& counts : partitions) {
      std::vector<at::Tensor> all;
      for (std::size_t r = 0; r < counts.size(); ++r) all.push_back(rows(static_cast<int>(r), counts[r]));
      Net alone;
      initialize(alone, 1);
      add_up(
          alone, [&](const at::Tensor& x) { return alone.forward(x); }, at::cat(all), kind);
      for (const bool overlap : {true, false}) {
        for (const bool weight_outputs : {true, false}) {
          run_torch_ranks(static_cast<int>(counts.size()), [&](const Group& group) {
            Net net;
            initialize(net, 1);
            libtorch::DdpOptions options = many_buckets();
            options.loss = kind;
            options.overlap = overlap;
            options.weight_outputs = weight_outputs;
            libtorch::DistributedDataParallel ddp(net, group, options);
            add_up(
                net, [&](const at::Tensor& x) { return ddp(x); }, all[static_cast<std::size_t>(group->rank())], kind);
            expect_close(gradients_of(net), gradients_of(alone), std::to_string(counts.size()) + " ranks");
          });
        }
      }
    }
  }
}

TEST(Gradients, OfEarlierStepsOutliveAStepWithoutRows) {
  for (const int ranks : {1, 2, 3}) {
    for (const Loss kind : {Loss::mean, Loss::sum}) {
      run_torch_ranks(ranks, [&](const Group& group) {
        Net net;
        initialize(net, 1);
        libtorch::DistributedDataParallel ddp(net, group, {.loss = kind});
        loss_of(ddp(rows(group->rank(), 3)), kind).backward();
        const Tensors before = gradients_of(net);
        loss_of(ddp(rows(0, 0)), kind).backward();  // of a mean: NaN
        EXPECT_EQ(ddp.last_weight(), 0);
        EXPECT_TRUE(same_bits(gradients_of(net), before)) << ranks << " ranks";
        ddp.step_without_data();
        EXPECT_TRUE(same_bits(gradients_of(net), before)) << ranks << " ranks";
      });
    }
  }
}

// What autograd left in .grad before the micro-batches is not one of them.
TEST(Gradients, OfEarlierStepsAreNoMicroBatch) {
  for (const int ranks : {1, 2, 3}) {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), 6);
    Tensors wanted = gradients_alone(counts, [](Net& net, const at::Tensor& x) { return squares(net.forward(x)); });
    for (auto& [name, gradient] : wanted) gradient = gradient + 1;
    run_torch_ranks(ranks, [&](const Group& group) {
      Net net;
      initialize(net, 1);
      libtorch::DistributedDataParallel ddp(net, group, many_buckets());
      const at::Tensor x = rows(group->rank(), 6);
      const at::Tensor first = squares(ddp(x.slice(0, 0, 2)));
      for (at::Tensor& parameter : net.parameters()) parameter.mutable_grad() = at::ones_like(parameter);
      {
        const auto local = ddp.no_sync();
        first.backward();
      }
      squares(ddp(x.slice(0, 2, 6))).backward();
      expect_close(gradients_of(net), wanted, std::to_string(ranks) + " ranks");
    });
  }
}

TEST(Gradients, OfEarlierStepsAreBackAfterABackwardThatThrew) {
  run_torch_ranks(1, [](const Group& group) {
    Net net;
    initialize(net, 1);
    libtorch::DistributedDataParallel ddp(net, group, {.comm_hook = noop_hook()});
    squares(ddp(rows(0, 3))).backward();
    const Tensors before = gradients_of(net);
    const at::Tensor x = rows(0, 3).requires_grad_();
    x.register_hook([](const at::Tensor&) { throw std::runtime_error("no such row"); });
    EXPECT_ANY_THROW(squares(ddp(x)).backward());
    const Tensors after = gradients_of(net);
    for (const auto& [name, gradient] : after) EXPECT_TRUE(at::equal(gradient, before.at(name))) << name;
    EXPECT_EQ(after.size(), before.size());
    squares(ddp(rows(0, 3))).backward();
    for (const auto& [name, gradient] : gradients_of(net))
      EXPECT_TRUE(at::equal(gradient, before.at(name) * 2)) << name;
  });
}

TEST(Gradients, OfFewBitsAreWeightedExactly) {
  run_torch_ranks(2, [&](const Group& group) {
    ::torch::nn::Linear net(1, 1);
    net->to(at::kBFloat16);
    libtorch::DistributedDataParallel ddp(net, group);
    // 257 has no bfloat16.
    ddp(at::ones({group->rank() == 0 ? 257 : 1, 1}, at::kBFloat16)).mean().backward();
    EXPECT_EQ(ddp.last_weight(), 258);
    EXPECT_NEAR(net->bias.grad().item<double>(), 1.0, 0.01);
  });
}

struct Mixed : ::torch::nn::Module {
  std::vector<at::Tensor> scales;
  Mixed() {
    for (const auto type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
      scales.push_back(register_parameter(c10::toString(type), at::ones({3}, type)));
    }
    scales.push_back(register_parameter("scalar", at::ones({})));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = at::zeros_like(x);
    for (const at::Tensor& scale : scales) y = y + x * scale.to(at::kDouble);
    return y;
  }
};

// Of 3 and 1 rows the mean has few bits: every dtype holds it.
TEST(Gradients, OfEveryDtypeInOneModule) {
  const auto data = [](int rank) { return at::full({rank == 0 ? 3 : 1, 3}, rank == 0 ? 1.0 : 5.0, at::kDouble); };
  for (const bool overlap : {true, false}) {
    run_torch_ranks(2, [&](const Group& group) {
      Mixed net;
      libtorch::DistributedDataParallel ddp(net, group, {.overlap = overlap});
      for (int step = 0; step < 3; ++step) {
        net.zero_grad(/*set_to_none=*/step == 1);
        ddp(data(group->rank())).sum(1).mean().backward();
        for (const auto& item : net.named_parameters()) {
          const at::Tensor& gradient = item.value().grad();
          EXPECT_EQ(gradient.scalar_type(), item.value().scalar_type());
          const double wanted = item.key() == "scalar" ? 6 : 2;  // (3 * 1 + 1 * 5) / 4 for each of 3
          EXPECT_TRUE(gradient.eq(wanted).all().item<bool>()) << item.key() << ": " << gradient;
        }
      }
    });
  }
}

// As in a GAN: one backward goes through both, and each has steps of its own.
TEST(Gradients, OfTwoModulesOfOneGroup) {
  struct Second : Net {
    at::Tensor forward(const at::Tensor& x) { return Net::forward(at::cat({x, x.slice(1, 0, 1)}, 1)); }
  };
  const auto run = [](Second& second, auto&& one, auto&& other, const at::Tensor& x) {
    squares(other(one(x))).backward();
    second.zero_grad(true);
    squares(other(one(x).detach())).backward();
  };
  Net first;
  Second second;
  initialize(first, 1);
  initialize(second, 2);
  run(
      second, [&](const at::Tensor& x) { return first.forward(x); },
      [&](const at::Tensor& x) { return second.forward(x); }, at::cat({rows(0, 5), rows(1, 2)}));
  run_torch_ranks(2, [&](const Group& group) {
    Net own_first;
    Second own_second;
    initialize(own_first, 1);
    initialize(own_second, 2);
    libtorch::DistributedDataParallel one(own_first, group, many_buckets());
    libtorch::DistributedDataParallel other(own_second, group, many_buckets());
    run(own_second, one, other, rows(group->rank(), group->rank() == 0 ? 5 : 2));
    expect_close(gradients_of(own_first), gradients_of(first), "the first");
    expect_close(gradients_of(own_second), gradients_of(second), "the second");
    EXPECT_EQ(one.steps(), 1);
    EXPECT_EQ(other.steps(), 2);
  });
}

// One backward, in which each rank leaves out a part of another module.
TEST(Gradients, OfTwoModulesOfOneGroupThatRanksUseDifferently) {
  auto options = many_buckets();
  options.overlap = false;
  const auto run = [](Net& one, const at::Tensor& x, int rank, auto&& call_one, auto&& call_other) {
    one.use_side = rank == 0;
    return squares(call_other(call_one(x), rank == 1));
  };
  struct Second : Net {
    at::Tensor forward(const at::Tensor& x, bool takes_side) {
      use_side = takes_side;
      return Net::forward(at::cat({x, x.slice(1, 0, 1)}, 1));
    }
  };
  Net first;
  Second second;
  initialize(first, 1);
  initialize(second, 2);
  for (const int rank : {0, 1}) {
    const double share = (rank == 0 ? 5.0 : 2.0) / 7;
    (run(
         first, rows(rank, rank == 0 ? 5 : 2), rank, [&](const at::Tensor& x) { return first.forward(x); },
         [&](const at::Tensor& x, bool takes_side) { return second.forward(x, takes_side); }) *
     share)
        .backward();
  }
  run_torch_ranks(2, [&](const Group& group) {
    const int rank = group->rank();
    Net own_first;
    Second own_second;
    initialize(own_first, 1);
    initialize(own_second, 2);
    libtorch::DistributedDataParallel one(own_first, group, options);
    libtorch::DistributedDataParallel other(own_second, group, options);
    for (int step = 0; step < 3; ++step) {
      own_first.zero_grad(true);
      own_second.zero_grad(true);
      run(own_first, rows(rank, rank == 0 ? 5 : 2), rank, one, other).backward();
      expect_close(gradients_of(own_first), gradients_of(first), "the first");
      expect_close(gradients_of(own_second), gradients_of(second), "the second");
    }
  });
}

// Forward in one, backward in another, and neither is the one that wrapped the module.
TEST(Gradients, OfStepsInOtherThreads) {
  const Tensors wanted = gradients_alone({5, 2}, [](Net& net, const at::Tensor& x) { return squares(net.forward(x)); });
  run_torch_ranks(2, [&](const Group& group) {
    Net net;
    initialize(net, 1);
    libtorch::DistributedDataParallel ddp(net, group, many_buckets());
    for (int step = 0; step < 2; ++step) {
      net.zero_grad(true);
      at::Tensor loss;
      std::thread([&] { loss = squares(ddp(rows(group->rank(), group->rank() == 0 ? 5 : 2))); }).join();
      std::thread([&] { loss.backward(); }).join();
      expect_close(gradients_of(net), wanted, "step " + std::to_string(step));
    }
  });
}

// Which branch's gradients come first depends on which was computed last.
TEST(Gradients, ReadyInAnotherOrderOnEachRankAndInEachStep) {
  const Tensors wanted = gradients_alone({5, 2}, [](Net& net, const at::Tensor& x) { return squares(net.forward(x)); });
  struct Turning : Net {
    bool side_first = false;
    at::Tensor forward(const at::Tensor& x) {
      at::Tensor beside;
      if (side_first) beside = side(x);
      const at::Tensor y = b(at::tanh(a(x)));
      return y + (side_first ? beside : side(x));
    }
  };
  run_torch_ranks(2, [&](const Group& group) {
    Turning net;
    initialize(net, 1);
    libtorch::DistributedDataParallel ddp(net, group, many_buckets());
    for (int step = 0; step < 4; ++step) {
      net.side_first = ((step >> group->rank()) & 1) != 0;  // the four combinations of two ranks
      net.zero_grad(/*set_to_none=*/step == 2);
      squares(ddp(rows(group->rank(), group->rank() == 0 ? 5 : 2))).backward();
      expect_close(gradients_of(net), wanted, "step " + std::to_string(step));
    }
  });
}

struct TwoHeads : ::torch::nn::Module {
  ::torch::nn::Linear trunk = register_module("trunk", ::torch::nn::Linear(4, 6));
  ::torch::nn::Linear left = register_module("left", ::torch::nn::Linear(6, 3));
  ::torch::nn::Linear right = register_module("right", ::torch::nn::Linear(6, 2));
  std::pair<at::Tensor, std::vector<at::Tensor>> forward(const at::Tensor& x) {
    const at::Tensor h = at::tanh(trunk(x));
    return {left(h), {right(h), h * 2}};
  }
};

// Each rank takes other outputs, and others again in the next step: (left), (right), (both), (what needs no head).
TEST(Gradients, OfSomeOfSeveralOutputs) {
  const auto loss = [](const std::pair<at::Tensor, std::vector<at::Tensor>>& output, int which) {
    const at::Tensor all[] = {squares(output.first), squares(output.second[0]),
                              squares(output.first) + squares(output.second[0]), squares(output.second[1])};
    return all[which];
  };
  run_torch_ranks(2, [&](const Group& group) {
    TwoHeads net;
    initialize(net, 1);
    libtorch::DistributedDataParallel ddp(net, group, many_buckets());
    for (int step = 0; step < 16; ++step) {
      const int which[] = {step % 4, step / 4};
      TwoHeads alone;
      initialize(alone, 1);
      (loss(alone.forward(rows(0, 5)), which[0]) * (5.0 / 7) + loss(alone.forward(rows(1, 2)), which[1]) * (2.0 / 7))
          .backward();
      net.zero_grad(/*set_to_none=*/true);
      loss(ddp(rows(group->rank(), group->rank() == 0 ? 5 : 2)), which[group->rank()]).backward();
      expect_close(gradients_of(net), gradients_of(alone), "step " + std::to_string(step));
    }
  });
}

struct InPlace : Net {
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = a(x);
    h.mul_(2).sigmoid_();
    at::Tensor y = b(h);
    y += side(x);
    return y.slice(1, 0, 2).tanh_();
  }
};

// Activations within the model, and gradients between backward and the optimizer: clipped, scaled, kept.
TEST(Gradients, ChangedInPlace) {
  const auto train = [](Net& net, const std::function<void(int)>& backward) {
    const ::torch::optim::SGDOptions options = ::torch::optim::SGDOptions(0.1).momentum(0.9);
    std::vector<::torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(net.a->parameters());
    groups.emplace_back(net.side->parameters(), std::make_unique<::torch::optim::SGDOptions>(0.3));
    groups.emplace_back(net.b->parameters());
    ::torch::optim::SGD optimizer(groups, options);
    for (int step = 0; step < 6; ++step) {
      if (step % 3 != 0) net.zero_grad(/*set_to_none=*/step % 3 == 1);
      backward(step);
      ::torch::nn::utils::clip_grad_norm_(net.parameters(), 0.05);
      net.side->weight.mutable_grad().mul_(0.5);
      optimizer.step();
    }
  };
  InPlace alone;
  initialize(alone, 1);
  train(alone, [&](int step) { squares(alone.forward(at::cat({rows(0, 5), rows(1, 2)}) + step)).backward(); });
  run_torch_ranks(2, [&](const Group& group) {
    InPlace net;
    initialize(net, 1);
    libtorch::DistributedDataParallel ddp(net, group, many_buckets());
    train(net, [&](int step) { squares(ddp(rows(group->rank(), group->rank() == 0 ? 5 : 2) + step)).backward(); });
    expect_close(weights_of(net), weights_of(alone), "weights");
  });
}

// `use`: whether a rank's loss depends on the layer next to the others in a step (10 + step: in its second
// micro-batch). Returns how often its loss is logged.
std::int64_t lost_gradients(int ranks, const std::function<bool(int rank, int step)>& use,
                            const libtorch::DdpOptions& options = many_buckets()) {
  const Warnings warnings;
  run_torch_ranks(ranks, [&](const Group& group) {
    Net net;
    libtorch::DistributedDataParallel ddp(net, group, options);
    for (int step = 0; step < 6; ++step) {
      net.zero_grad(/*set_to_none=*/step % 2 == 0);
      net.use_side = use(group->rank(), step);
      if (step == 2) {  // not the layer's fault: no rank has rows
        ddp.step_without_data();
        continue;
      }
      if (step == 3) {
        const auto local = ddp.no_sync();
        squares(ddp(rows(group->rank(), 2))).backward();
        net.use_side = use(group->rank(), 10 + step);
      }
      squares(ddp(rows(group->rank(), 3))).backward();
    }
  });
  return warnings.count("no rank's loss depends on 'side.weight', 'side.bias', which had gradients in earlier steps");
}

// As a graph that is cut by mistake would do.
TEST(Gradients, ThatAParameterGetsNoMoreAreToldOnce) {
  for (const int ranks : {1, 2}) {
    EXPECT_EQ(lost_gradients(ranks, [](int, int step) { return step < 4; }), 1) << ranks << " ranks";
    EXPECT_EQ(lost_gradients(ranks, [](int, int step) { return step % 2 == 0; }), 1) << ranks << " ranks";
    EXPECT_EQ(lost_gradients(ranks, [](int, int) { return true; }), 0) << ranks << " ranks";
    EXPECT_EQ(lost_gradients(ranks, [](int, int) { return false; }), 0) << ranks << " ranks";
    EXPECT_EQ(lost_gradients(ranks, [](int, int step) { return step > 2; }), 0) << ranks << " ranks";
    EXPECT_EQ(lost_gradients(ranks, [](int, int step) { return step != 13; }), 0) << "of one micro-batch";
  }
  EXPECT_EQ(lost_gradients(2, [](int rank, int step) { return (rank + step) % 2 == 0; }), 0) << "another rank's";
}

TEST(Weights, AreWhatTheProgramSays) {
  run_torch_ranks(2, [](const Group& group) {
    Net net;
    initialize(net, 1);
    libtorch::DistributedDataParallel ddp(net, group);
    const double weight = group->rank() == 0 ? 30 : 10;
    const at::Tensor x = rows(group->rank(), 3);
    const at::Tensor y = ddp(x);
    ddp.set_weight(static_cast<std::int64_t>(weight));
    squares(y).backward();
    EXPECT_EQ(ddp.last_weight(), 40);
    Net other;
    initialize(other, 1);
    (squares(other.forward(rows(0, 3))) * 0.75 + squares(other.forward(rows(1, 3))) * 0.25).backward();
    expect_close(gradients_of(net), gradients_of(other), "30 and 10");
  });
}

TEST(Weights, ComeFromTheDimensionThatCountsRows) {
  run_torch_ranks(2, [](const Group& group) {
    ::torch::nn::LSTM lstm(3, 2);
    libtorch::DistributedDataParallel ddp(lstm, group, {.batch_dim = 1});
    std::get<0>(ddp(at::ones({7, group->rank() + 1, 3}))).mean().backward();
    EXPECT_EQ(ddp.last_weight(), 3);
    expect_text(outcome_of([&] { ddp(at::ones({7})); }), {"InvalidArgument", "batch_dim is 1", "1 dimensions"});
  });
}

// The tensors of `value` by their sizes.
template <typename T>
std::vector<std::int64_t> sizes_in(T value) {
  std::vector<std::int64_t> sizes;
  libtorch::visit_tensors(value, [&](const at::Tensor& tensor) { sizes.push_back(tensor.size(0)); });
  return sizes;
}

TEST(Weights, CountRowsInWhateverHoldsTensors) {
  using Sizes = std::vector<std::int64_t>;
  const at::Tensor one = at::zeros({1});
  const at::Tensor two = at::zeros({2});
  EXPECT_EQ(sizes_in(one), (Sizes{1}));
  EXPECT_EQ(sizes_in(std::tuple(3, one, std::pair(two, "text"))), (Sizes{1, 2}));
  EXPECT_EQ(sizes_in(std::array{one, two}), (Sizes{1, 2}));
  EXPECT_EQ(sizes_in(at::TensorList({one, two})), (Sizes{1, 2}));
  EXPECT_EQ(sizes_in(std::map<std::string, std::vector<at::Tensor>>{{"x", {one}}, {"y", {two}}}), (Sizes{1, 2}));
  EXPECT_EQ(sizes_in(::torch::OrderedDict<std::string, at::Tensor>{{"x", two}, {"y", one}}), (Sizes{2, 1}));
  EXPECT_EQ(sizes_in(c10::optional<at::Tensor>(two)), (Sizes{2}));
  EXPECT_EQ(sizes_in(std::optional<std::vector<at::Tensor>>()), Sizes{});
  EXPECT_EQ(sizes_in(std::tuple(std::string("text"), std::vector<bool>{true}, std::filesystem::path("a/b"))), Sizes{});
}

// weight_outputs reaches tensors in containers; in a struct of the program's own it can't, and says so.
TEST(Weights, ThatReachNoOutputAreRefused) {
  struct Outputs {
    at::Tensor logits;
  };
  struct Hiding : Net {
    Outputs forward(const at::Tensor& x) { return {Net::forward(x)}; }
  };
  struct Naming : Net {
    std::map<std::string, at::Tensor> forward(const at::Tensor& x) { return {{"logits", Net::forward(x)}}; }
  };
  const Tensors wanted = gradients_alone({5, 2}, [](Net& net, const at::Tensor& x) { return squares(net.forward(x)); });
  run_torch_ranks(2, [&](const Group& group) {
    const at::Tensor x = rows(group->rank(), group->rank() == 0 ? 5 : 2);
    Naming naming;
    initialize(naming, 1);
    libtorch::DistributedDataParallel ddp(naming, group, {.weight_outputs = true});
    squares(ddp(x)["logits"]).backward();
    expect_close(gradients_of(naming), wanted, "in a map");
    // Whoever is second hears of the first.
    const std::string text = outcome_of([&] {
      Hiding hiding;
      libtorch::DistributedDataParallel hidden(hiding, group, {.weight_outputs = true});
      squares(hidden(x).logits).backward();
    });
    expect_text(text, {"came through no output", "weight_outputs to false"});
  });
}

TEST(MicroBatches, OfUnevenSizeAreTheMeanOverAllRows) {
  for (const int ranks : {1, 2, 3}) {
    for (const bool overlap : {true, false}) {
      std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), 6);
      const Tensors wanted =
          gradients_alone(counts, [](Net& net, const at::Tensor& x) { return squares(net.forward(x)); });
      run_torch_ranks(ranks, [&](const Group& group) {
        Net net;
        initialize(net, 1);
        auto options = many_buckets();
        options.overlap = overlap;
        libtorch::DistributedDataParallel ddp(net, group, options);
        for (int step = 0; step < 3; ++step) {
          if (step > 0) net.zero_grad(/*set_to_none=*/step == 1);
          const at::Tensor x = rows(group->rank(), 6);
          {
            const auto local = ddp.no_sync();
            squares(ddp(x.slice(0, 0, 1))).backward();
            EXPECT_FALSE(net.a->weight.grad().defined()) << "a sum is not a gradient yet";
            squares(ddp(x.slice(0, 1, 4))).backward();
          }
          squares(ddp(x.slice(0, 4, 6))).backward();
          EXPECT_EQ(ddp.last_weight(), 6 * ranks);
          EXPECT_EQ(ddp.steps(), step + 1);
          expect_close(gradients_of(net), wanted, std::to_string(ranks) + " ranks, step " + std::to_string(step));
        }
      });
    }
  }
}

TEST(NoData, OnAnyRankOrAll) {
  const Tensors wanted = gradients_alone({0, 4}, [](Net& net, const at::Tensor& x) { return squares(net.forward(x)); });
  for (const bool with_forward : {true, false}) {
    run_torch_ranks(2, [&](const Group& group) {
      Net net;
      initialize(net, 1);
      libtorch::DistributedDataParallel ddp(net, group, many_buckets());
      const auto step = [&](std::int64_t count) {
        if (count == 0 && !with_forward) return ddp.step_without_data();
        squares(ddp(rows(1, count))).backward();  // over 0 rows: NaN
      };
      for (int i = 0; i < 2; ++i) {
        net.zero_grad(true);
        step(group->rank() == 0 ? 0 : 4);
        EXPECT_EQ(ddp.last_weight(), 4);
        expect_close(gradients_of(net), wanted, "one rank has data");
      }
      net.zero_grad(true);
      step(0);
      EXPECT_EQ(ddp.last_weight(), 0);
      for (const at::Tensor& parameter : net.parameters()) {
        ASSERT_EQ(parameter.grad().defined(), with_forward);
        if (with_forward) {
          EXPECT_TRUE(parameter.grad().eq(0).all().item<bool>());
        }
      }
      net.zero_grad(true);
      step(2);
      EXPECT_EQ(ddp.last_weight(), 4);
    });
  }
}

TEST(Evaluation, SendsNothing) {
  run_torch_ranks(2, [](const Group& group) {
    Net net;
    libtorch::DistributedDataParallel ddp(net, group);
    squares(ddp(rows(group->rank(), 3))).backward();
    if (group->rank() == 0) {  // alone: the others would have to come
      const at::NoGradGuard no_grad;
      net.eval();
      EXPECT_FALSE(ddp(rows(0, 7)).requires_grad());
      net.train();
    }
    squares(ddp(rows(group->rank(), 3))).backward();
    EXPECT_EQ(ddp.last_weight(), 6);
  });
}

}  // namespace
}  // namespace lockstep::testing::behaviour_test
