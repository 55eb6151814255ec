// SPDX-License-Identifier: Apache-2.0
// What may lie between a forward and an optimizer's step.
#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <stdexcept>
#include <thread>

#include "tests/libtorch/small_net.h"
#include "tests/libtorch/warnings.h"

namespace lockstep::testing::behaviour_test {
namespace {

using Forward = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor slope_of(const Forward& forward, const at::Tensor& x) {
  const at::Tensor input = x.clone().requires_grad_();
  return ::torch::autograd::grad({forward(input).sum()}, {input}, {}, true, /*create_graph=*/true)[0];
}

// The identity, whose gradient has memory of the opposite sign, as those of conjugates may have.
struct Turned : ::torch::autograd::Function<Turned> {
  static at::Tensor forward(::torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext*,
                                                   const ::torch::autograd::variable_list& gradients) {
    return {at::_neg_view(gradients[0].neg())};
  }
};

// The same loss on 2 ranks of 5 and 2 rows has the gradients of one process.
TEST(Gradients, OfLossesOfAnyKind) {
  const std::map<std::string, std::function<at::Tensor(const Forward&, Net&, const at::Tensor&)>> losses{
      {"outputs changed in place",
       [](const auto& forward, Net&, const at::Tensor& x) {
         at::Tensor y = forward(x);
         y.mul_(2).add_(1).unsqueeze_(0).squeeze_(0);
         return squares(y.tanh_());
       }},
      {"parts of the outputs",
       [](const auto& forward, Net&, const at::Tensor& x) { return squares(forward(x).select(1, 2)); }},
      // Its gradient does not come through the outputs, and counts like the rest of the loss.
      {"a penalty on the parameters",
       [](const auto& forward, Net& net, const at::Tensor& x) {
         return squares(forward(x)) + net.a->weight.square().sum() * 0.1;
       }},
      {"a gradient that is to be negated when it is read",
       [](const auto& forward, Net& net, const at::Tensor& x) {
         net.use_side = false;
         return squares(forward(x)) + Turned::apply(net.side->weight).square().sum() * squares(x);
       }},
      {"a penalty on the gradient of the input alone",
       [](const auto& forward, Net&, const at::Tensor& x) { return slope_of(forward, x).square().sum(1).mean(); }},
      {"two forwards",
       [](const auto& forward, Net&, const at::Tensor& x) {
         const at::Tensor first = forward(x);
         return squares(first + forward(x * 2));
       }},
      {"two backwards of one graph", [](const auto& forward, Net&, const at::Tensor& x) {
         const at::Tensor y = forward(x);
         squares(y).backward({}, /*retain_graph=*/true);
         return y.abs().mean();
       }}};
  for (const auto& [name, loss] : losses) {
    const Tensors wanted = gradients_alone({5, 2}, [&loss = loss](Net& net, const at::Tensor& x) {
      return loss([&](const at::Tensor& input) { return net.forward(input); }, net, x);
    });
    run_torch_ranks(2, [&, &loss = loss, &name = name](const Group& group) {
      Net net;
      initialize(net, 1);
      libtorch::DistributedDataParallel ddp(net, group, many_buckets());
      loss([&](const at::Tensor& input) { return ddp(input); }, net, rows(group->rank(), group->rank() == 0 ? 5 : 2))
          .backward();
      expect_close(gradients_of(net), wanted, name);
    });
  }
}

TEST(Gradients, AreViewsOfOneArenaFromTheFirstBackwardOn) {
  on_ranks(2, {}, [](auto& net, auto& ddp) {
    std::map<std::string, void*> addresses;
    for (int step = 0; step < 4; ++step) {
      squares(ddp(rows(ddp.group()->rank(), 3))).backward();
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

at::Tensor loss_of(const at::Tensor& y, Loss kind) { return kind == Loss::mean ? squares(y) : y.square().sum(); }

// Steps on top of a gradient that was there before the first; the second leaves a layer out. What the program does to
// gradients after a step stays.
void add_up(Net& net, const Forward& forward, const at::Tensor& x, Loss kind) {
  for (at::Tensor& parameter : net.parameters()) parameter.mutable_grad() = at::ones_like(parameter);
  for (int step = 0; step < 3; ++step) {
    net.use_side = step != 1;
    loss_of(forward(x * (step + 1)), kind).backward();
    net.side->weight.mutable_grad().mul_(0.5);
  }
}

TEST(Gradients, WithoutZeroGradAddUpAsInOneProcess) {
  const std::array<at::Tensor, 3> parts{rows(0, 5), rows(1, 0), rows(2, 2)};
  for (const Loss kind : {Loss::mean, Loss::sum}) {
    Net alone;
    initialize(alone, 1);
    add_up(
        alone, [&](const at::Tensor& x) { return alone.forward(x); }, at::cat(parts), kind);
    for (const bool overlap : {true, false}) {
      for (const bool weight_outputs : {true, false}) {
        run_torch_ranks(3, [&](const Group& group) {
          Net net;
          initialize(net, 1);
          libtorch::DdpOptions options = many_buckets();
          options.loss = kind;
          options.overlap = overlap;
          options.weight_outputs = weight_outputs;
          libtorch::DistributedDataParallel ddp(net, group, options);
          add_up(
              net, [&](const at::Tensor& x) { return ddp(x); }, parts[static_cast<std::size_t>(group->rank())], kind);
          expect_close(gradients_of(net), gradients_of(alone), "rank " + std::to_string(group->rank()));
        });
      }
    }
  }
}

TEST(Gradients, OfAMicroBatchAreNotThereYet) {
  on_ranks(2, {}, [](auto& net, auto& ddp) {
    for (const bool is_first : {true, false}) {
      const auto local = ddp.no_sync(is_first);
      squares(ddp(rows(ddp.group()->rank(), 3))).backward();
      EXPECT_EQ(net.a->weight.grad().defined(), !is_first);
    }
  });
}

TEST(Gradients, OfAStepInWhichNobodyHasRowsAreZeroIfAForwardRan) {
  for (const bool has_forward : {false, true}) {
    on_ranks(2, many_buckets(), [&](auto& net, auto& ddp) {
      if (has_forward) {
        squares(ddp(rows(0, 0))).backward();  // NaN
      } else {
        ddp.step_without_data();
      }
      for (const at::Tensor& parameter : net.parameters()) {
        ASSERT_EQ(parameter.grad().defined(), has_forward);
        if (has_forward) {
          EXPECT_TRUE(parameter.grad().eq(0).all().item<bool>());
        }
      }
    });
  }
}

// What autograd left in .grad before the micro-batches is not one of them.
TEST(Gradients, OfEarlierStepsAreNoMicroBatch) {
  for (const int ranks : {1, 2, 3}) {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), 6);
    Tensors wanted = gradients_alone(counts, [](Net& net, const at::Tensor& x) { return squares(net.forward(x)); });
    for (auto& [name, gradient] : wanted) gradient = gradient + 1;
    on_ranks(ranks, many_buckets(), [&](auto& net, auto& ddp) {
      const at::Tensor x = rows(ddp.group()->rank(), 6);
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
  on_ranks(1, {.comm_hook = noop_hook()}, [](auto& net, auto& ddp) {
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
    on_ranks<Mixed>(2, {.overlap = overlap}, [&](auto& net, auto& ddp) {
      for (int step = 0; step < 3; ++step) {
        net.zero_grad(/*set_to_none=*/step == 1);
        ddp(data(ddp.group()->rank())).sum(1).mean().backward();
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

struct Second : Net {
  at::Tensor forward(const at::Tensor& x, bool takes_side) {
    use_side = takes_side;
    return Net::forward(at::cat({x, x.slice(1, 0, 1)}, 1));
  }
};

// As in a GAN: one backward goes through both, and each has steps of its own. Ranks may leave out parts of different
// modules.
TEST(Gradients, OfTwoModulesOfOneGroup) {
  for (const bool differs : {false, true}) {
    const auto loss_of_rank = [&](int rank, Net& first, auto&& call_first, auto&& call_second) {
      first.use_side = !differs || rank == 0;
      return squares(call_second(call_first(rows(rank, rank == 0 ? 5 : 2)), !differs || rank == 1));
    };
    Net first;
    Second second;
    initialize(first, 1);
    initialize(second, 2);
    for (const int rank : {0, 1}) {
      const at::Tensor loss = loss_of_rank(
          rank, first, [&](const at::Tensor& x) { return first.forward(x); },
          [&](const at::Tensor& x, bool takes_side) { return second.forward(x, takes_side); });
      (loss * (rank == 0 ? 5.0 / 7 : 2.0 / 7)).backward();
    }
    run_torch_ranks(2, [&](const Group& group) {
      Net own_first;
      Second own_second;
      initialize(own_first, 1);
      initialize(own_second, 2);
      auto options = many_buckets();
      options.overlap = !differs;
      libtorch::DistributedDataParallel one(own_first, group, options);
      libtorch::DistributedDataParallel other(own_second, group, options);
      for (int step = 0; step < 2; ++step) {
        own_first.zero_grad(true);
        own_second.zero_grad(true);
        loss_of_rank(group->rank(), own_first, one, other).backward();
        expect_close(gradients_of(own_first), gradients_of(first), "the first");
        expect_close(gradients_of(own_second), gradients_of(second), "the second");
      }
      squares(other(one(rows(group->rank(), 2)).detach(), true)).backward();
      EXPECT_EQ(one.steps(), 2);
      EXPECT_EQ(other.steps(), 3);
    });
  }
}

// Forward in one, backward in another, and neither is the one that wrapped the module.
TEST(Gradients, OfStepsInOtherThreads) {
  const Tensors wanted = gradients_alone({5, 2}, [](Net& net, const at::Tensor& x) { return squares(net.forward(x)); });
  on_ranks(2, many_buckets(), [&](auto& net, auto& ddp) {
    for (int step = 0; step < 2; ++step) {
      net.zero_grad(true);
      at::Tensor loss;
      std::thread([&] { loss = squares(ddp(rows(ddp.group()->rank(), ddp.group()->rank() == 0 ? 5 : 2))); }).join();
      std::thread([&] { loss.backward(); }).join();
      expect_close(gradients_of(net), wanted, "step " + std::to_string(step));
    }
  });
}

TEST(Gradients, OfOneOfSeveralOutputs) {
  struct Heads : Net {
    std::pair<at::Tensor, std::vector<at::Tensor>> forward(const at::Tensor& x) {
      const at::Tensor y = Net::forward(x);
      return {y, {y + 1, y * 2}};
    }
  };
  const Tensors wanted =
      gradients_alone({5, 2}, [](Net& net, const at::Tensor& x) { return squares(net.forward(x) * 2); });
  for (const bool weight_outputs : {false, true}) {
    on_ranks<Heads>(2, {.weight_outputs = weight_outputs}, [&](auto& net, auto& ddp) {
      squares(ddp(rows(ddp.group()->rank(), ddp.group()->rank() == 0 ? 5 : 2)).second[1]).backward();
      expect_close(gradients_of(net), wanted, "the last of three");
    });
  }
}

// `use`: whether a rank's loss depends on the layer next to the others in a step (10 + step: in its second
// micro-batch). Returns how often its loss is logged.
std::int64_t lost_gradients(int ranks, const std::function<bool(int rank, int step)>& use,
                            const libtorch::DdpOptions& options = many_buckets()) {
  const Warnings warnings;
  on_ranks(ranks, options, [&](auto& net, auto& ddp) {
    for (int step = 0; step < 6; ++step) {
      net.zero_grad(/*set_to_none=*/step % 2 == 0);
      net.use_side = use(ddp.group()->rank(), step);
      if (step == 2) {  // not the layer's fault: no rank has rows
        ddp.step_without_data();
        continue;
      }
      if (step == 3) {
        const auto local = ddp.no_sync();
        squares(ddp(rows(ddp.group()->rank(), 2))).backward();
        net.use_side = use(ddp.group()->rank(), 10 + step);
      }
      squares(ddp(rows(ddp.group()->rank(), 3))).backward();
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
  run_torch_ranks(2, [&](const Group& group) {
    // Whoever is second hears of the first.
    const std::string text = outcome_of([&] {
      Hiding hiding;
      libtorch::DistributedDataParallel hidden(hiding, group, {.weight_outputs = true});
      squares(hidden(rows(0, 2)).logits).backward();
    });
    expect_text(text, {"came through no output", "weight_outputs to false"});
  });
}

}  // namespace
}  // namespace lockstep::testing::behaviour_test
