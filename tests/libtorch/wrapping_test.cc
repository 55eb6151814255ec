// SPDX-License-Identifier: Apache-2.0
// What is wrapped: which parameters and buffers, how they start on each rank, and what is refused.
#include "lockstep/libtorch/sync_batch_norm.h"
#include "tests/libtorch/small_net.h"

namespace lockstep::testing::wrapping_test {
namespace {

TEST(Parameters, ThatAreDeclaredUnusedHoldUpNoBucket) {
  for (const bool declared : {false, true}) {
    auto options = many_buckets();
    if (declared) options.unused = {"side.weight", "side.bias"};
    on_ranks(2, options, [&](auto& net, auto& ddp) {
      net.use_side = false;
      squares(ddp(rows(ddp.group()->rank(), 3))).backward();
      EXPECT_EQ(ddp.last_step().gradients_ready, declared ? 6 : 4);
    });
  }
}

// y = x w, whose backward gives no gradient for w.
struct Forgetful : ::torch::autograd::Function<Forgetful> {
  static at::Tensor forward(::torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& w) {
    context->save_for_backward({w});
    return x.matmul(w);
  }
  static ::torch::autograd::tensor_list backward(::torch::autograd::AutogradContext* context,
                                                 ::torch::autograd::tensor_list gradients) {
    return {gradients[0].matmul(context->get_saved_variables()[0].t()), at::Tensor()};
  }
};

struct ForgetfulNet : Net {
  at::Tensor forgotten = register_parameter("forgotten", at::eye(3));
  ForgetfulNet() { initialize(*this, 1); }
  at::Tensor forward(const at::Tensor& x) { return Forgetful::apply(Net::forward(x), forgotten); }
};

// On the tape, with a backward that has nothing for it.
TEST(Parameters, WhoseGradientIsUndefinedInOneProcessHaveNone) {
  for (const int ranks : {1, 2, 3}) {
    std::vector<at::Tensor> all;
    for (int r = 0; r < ranks; ++r) all.push_back(rows(r, 3));
    ForgetfulNet alone;
    squares(alone.forward(at::cat(all))).backward();
    ASSERT_FALSE(alone.forgotten.grad().defined());
    for (const bool overlap : {true, false}) {
      run_torch_ranks(ranks, [&](const Group& group) {
        ForgetfulNet net;
        auto options = many_buckets();
        options.overlap = overlap;
        libtorch::DistributedDataParallel ddp(net, group, options);
        for (int step = 0; step < 3; ++step) {
          net.zero_grad(/*set_to_none=*/step == 1);
          squares(ddp(rows(group->rank(), 3))).backward();
          expect_close(gradients_of(net), gradients_of(alone), std::to_string(ranks) + " ranks");
        }
        net.forgotten.mutable_grad() = at::ones({3, 3});
        squares(ddp(rows(group->rank(), 3))).backward();
        EXPECT_TRUE(at::equal(net.forgotten.grad(), at::ones({3, 3}))) << "what the program put there stays";
      });
    }
  }
}

struct Tied : ::torch::nn::Module {
  ::torch::nn::Linear in = register_module("in", ::torch::nn::Linear(4, 4));
  ::torch::nn::Linear again = register_module("again", in);
  ::torch::nn::Linear frozen = register_module("frozen", ::torch::nn::Linear(4, 4));
  at::Tensor out = register_parameter("out", in->weight);
  Tied() {
    for (const at::Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& x) { return at::tanh(frozen(again(at::tanh(in(x))))).matmul(out); }
};

TEST(Parameters, SharedAndFrozen) {
  Tied alone;
  initialize(alone, 1);
  squares(alone.forward(at::cat({rows(0, 5), rows(1, 2)}))).backward();
  run_torch_ranks(2, [&](const Group& group) {
    Tied net;
    initialize(net, 1 + static_cast<std::uint64_t>(group->rank()));
    libtorch::DistributedDataParallel ddp(net, group);
    EXPECT_TRUE(at::equal(net.frozen->weight, alone.frozen->weight)) << "frozen ones are rank 0's, too";
    squares(ddp(rows(group->rank(), group->rank() == 0 ? 5 : 2))).backward();
    EXPECT_EQ(ddp.last_step().gradients_ready, 2);
    EXPECT_FALSE(net.frozen->weight.grad().defined());
    expect_close(gradients_of(net), gradients_of(alone), "tied");
  });
}

// Frozen while wrapped, and thawed again: no gradient meanwhile, on any rank.
TEST(Parameters, ThatFreezeForAWhileAreLeftAlone) {
  const Tensors wanted = gradients_alone({5, 2}, [](Net& net, const at::Tensor& x) { return squares(net.forward(x)); });
  on_ranks(2, many_buckets(), [&](auto& net, auto& ddp) {
    for (int step = 0; step < 6; ++step) {
      const bool is_frozen = step % 3 == 1;
      net.a->weight.requires_grad_(!is_frozen);
      net.zero_grad(/*set_to_none=*/true);
      squares(ddp(rows(ddp.group()->rank(), ddp.group()->rank() == 0 ? 5 : 2))).backward();
      EXPECT_EQ(net.a->weight.grad().defined(), !is_frozen) << "step " << step;
      auto expected = wanted;
      if (is_frozen) expected.erase("a.weight");
      expect_close(gradients_of(net), expected, "step " + std::to_string(step));
    }
  });
}

TEST(Start, EveryRankHasRankZerosParametersAndBuffersOfEveryDtype) {
  run_torch_ranks(3, [](const Group& group) {
    ::torch::nn::Module net;
    const int r = group->rank();
    net.register_parameter("f64", at::full({3}, 1.5 + r, at::kDouble));
    net.register_parameter("transposed", random_tensor({3, 5}, 9 + static_cast<std::uint64_t>(r)).t());
    net.register_buffer("mask", at::full({5}, r == 0, at::kBool));
    net.register_buffer("half", at::full({5}, 1.0 + r, at::kHalf));
    net.register_buffer("short", at::full({}, 3 + r, at::kShort));
    net.register_buffer("complex", at::full({2}, 3.0 + r, at::kComplexDouble));
    net.register_buffer("large", random_tensor({600, 700}, static_cast<std::uint64_t>(r)));
    net.register_buffer("nothing", at::zeros({0, 4}));
    const libtorch::DistributedDataParallel ddp(net, group);
    EXPECT_EQ(net.named_parameters()["f64"].sum().item<double>(), 4.5);
    EXPECT_TRUE(at::equal(net.named_parameters()["transposed"], random_tensor({3, 5}, 9).t()));
    EXPECT_TRUE(net.named_buffers()["mask"].all().item<bool>());
    EXPECT_EQ(net.named_buffers()["half"].sum().item<double>(), 5);
    EXPECT_EQ(net.named_buffers()["short"].item<int>(), 3);
    EXPECT_EQ(at::real(net.named_buffers()["complex"]).sum().item<double>(), 6);
    EXPECT_TRUE(at::equal(net.named_buffers()["large"], random_tensor({600, 700}, 0)));
  });
}

TEST(Start, BuffersAreRankZerosBeforeEveryForwardThatTrains) {
  run_torch_ranks(2, [](const Group& group) {
    for (const bool broadcast : {true, false}) {
      ::torch::nn::Sequential net(::torch::nn::Linear(4, 3), ::torch::nn::BatchNorm1d(3));
      libtorch::DistributedDataParallel ddp(net, group, {.broadcast_buffers = broadcast});
      const at::Tensor mean = net->named_buffers()["1.running_mean"];
      mean.fill_(group->rank());
      ddp(rows(group->rank(), 5)).mean().backward();
      mean.fill_(group->rank());
      squares(ddp(at::zeros({5, 4}))).backward();
      const double wanted =
          0.1 * net->named_parameters()["0.bias"][0].item<double>() + (broadcast ? 0 : 0.9 * group->rank());
      EXPECT_NEAR(mean[0].item<double>(), wanted, 1e-6);
    }
  });
}

TEST(Start, RanksThatDifferAreToldWhere) {
  for (const std::string what : {"parameter", "frozen", "unused", "buffer"}) {
    run_torch_ranks(2, [&](const Group& group) {
      ::torch::nn::Module net;
      const bool odd = group->rank() == 1;
      const at::Tensor weight = net.register_parameter("weight", at::zeros({3}));
      net.register_parameter("bias", at::zeros({what == "parameter" && odd ? 2 : 3}));
      if (what == "frozen" && odd) weight.requires_grad_(false);
      net.register_buffer("mean", at::zeros({3}, what == "buffer" && odd ? at::kInt : at::kFloat));
      libtorch::DdpOptions options;
      if (what == "unused" && odd) options.unused = {"weight"};
      const std::string text = outcome_of([&] { libtorch::DistributedDataParallel(net, group, options); });
      expect_text(text, {"Mismatch", what == "parameter" ? "bias" : what == "buffer" ? "mean" : "weight"});
      if (what == "parameter") expect_text(text, {"float32 [3]", "float32 [2]"});
    });
  }
}

at::Tensor channels_last(const at::Tensor& tensor) { return tensor.contiguous(at::MemoryFormat::ChannelsLast); }

// Gradients lie as their parameters do, and are summed where they lie.
TEST(Start, RanksWhoseParametersLieDifferentlyAreToldHow) {
  run_torch_ranks(3, [&](const Group& group) {
    ::torch::nn::Module net;
    net.register_parameter("point", channels_last(at::zeros({2, 3, 1, 1})));
    net.register_parameter("same", channels_last(at::zeros({2, 3, 2, 2})));
    const at::Tensor weight = at::zeros({2, 3, 2, 2});
    net.register_parameter("weight", group->rank() == 1 ? channels_last(weight) : weight);
    expect_text(outcome_of([&] { libtorch::DistributedDataParallel(net, group); }),
                {"Mismatch", "ranks 0 and 2 have 'weight (parameter, strides [12, 4, 2, 1])'",
                 "rank 1 has 'weight (parameter, strides [12, 1, 6, 3])'", "set_data", "before wrapping"});
  });
}

struct Conv : ::torch::nn::Module {
  at::Tensor wide = register_parameter("wide", at::zeros({4, 3, 3, 3}));
  at::Tensor point = register_parameter("point", at::zeros({5, 4, 1, 1}));
  at::Tensor mixed = register_parameter("mixed", at::zeros({3, 5, 2, 2}));
  Conv() { initialize(*this, 4); }
  at::Tensor forward(const at::Tensor& x) {
    return at::conv2d(at::tanh(at::conv2d(at::tanh(at::conv2d(x, wide)), point)), mixed);
  }
};

TEST(Parameters, InChannelsLastAreTrainedAsInOneProcess) {
  const auto input = [](int rank, std::int64_t count) {
    return random_tensor({count, 3, 5, 5}, static_cast<std::uint64_t>(rank) + 70);
  };
  Conv alone;
  squares(alone.forward(at::cat({input(0, 4), input(1, 2)}))).backward();
  run_torch_ranks(2, [&](const Group& group) {
    Conv net;
    for (at::Tensor& parameter : net.parameters()) parameter.set_data(channels_last(parameter.detach()));
    // In a dimension of one element a stride says nothing.
    if (group->rank() == 1) net.point.set_data(net.point.detach().contiguous());
    libtorch::DistributedDataParallel ddp(net, group, many_buckets());
    // One rank's memory is no business of the others, once they know how gradients lie.
    if (group->rank() == 1) net.mixed.set_data(net.mixed.detach().contiguous());
    for (int step = 0; step < 2; ++step) {
      net.zero_grad(/*set_to_none=*/step == 1);
      squares(ddp(channels_last(input(group->rank(), group->rank() == 0 ? 4 : 2)))).backward();
      EXPECT_TRUE(net.wide.grad().is_contiguous(at::MemoryFormat::ChannelsLast));
      ddp.check_replicas();
      expect_close(gradients_of(net), gradients_of(alone), "rank " + std::to_string(group->rank()));
    }
  });
}

// With gaps, each element still has a place of its own.
TEST(Parameters, ThatAreSlicesOfLargerMemoryAreTrained) {
  const auto make = [] {
    auto net = std::make_shared<Net>();
    net->a->weight.set_data(at::zeros({6, 9}).slice(1, 2, 6));
    net->b->weight.set_data(at::zeros({8, 6, 3}).select(2, 1).slice(0, 0, 6, 2));
    net->side->bias.set_data(at::zeros({9}).slice(0, 0, 9, 3));
    initialize(*net, 1);
    return net;
  };
  const Tensors wanted = gradients_alone({5, 2}, [](Net& net, const at::Tensor& x) { return squares(net.forward(x)); });
  run_torch_ranks(2, [&](const Group& group) {
    const auto net = make();
    if (group->rank() == 1) initialize(*net, 2);
    libtorch::DistributedDataParallel ddp(net, group, many_buckets());
    for (int step = 0; step < 2; ++step) {
      net->zero_grad(step == 0);
      squares(ddp(rows(group->rank(), group->rank() == 0 ? 5 : 2))).backward();
      expect_close(gradients_of(*net), wanted, "rank " + std::to_string(group->rank()));
    }
    ddp.check_replicas();
  });
}

TEST(Misuse, IsNamed) {
  run_torch_ranks(2, [](const Group& group) {
    const auto says = [](const std::function<void()>& call, std::initializer_list<std::string_view> words) {
      const std::string text = outcome_of(call);
      expect_text(text, {"InvalidArgument"});
      expect_text(text, words);
    };
    Net net;
    says([&] { libtorch::DistributedDataParallel(net, nullptr); }, {"group is null"});
    ::torch::nn::Module empty, complex;
    says([&] { libtorch::DistributedDataParallel(empty, group); }, {"no parameter"});
    complex.register_parameter("phase", at::zeros({2}, at::kComplexFloat));
    says([&] { libtorch::DistributedDataParallel(complex, group); }, {"'phase' is ComplexFloat", "view_as_real"});
    libtorch::DistributedDataParallel ddp(net, group);
    says([&] { libtorch::DistributedDataParallel(net, group); },
         {"'a.weight' is trained by another", "destroy that DistributedDataParallel"});
    for (const bool with_group : {false, true}) {
      ::torch::nn::Sequential normed(::torch::nn::Linear(4, 3), ::torch::nn::BatchNorm1d(3));
      libtorch::DistributedDataParallel late(normed, group);
      libtorch::convert_sync_batch_norm(*normed, with_group ? group : nullptr);
      says([&] { late(rows(0, 2)); }, {"'1' was added", "call convert_sync_batch_norm first"});
    }
  });
}

struct ChangingNet : Net {
  ::torch::nn::BatchNorm1d norm =
      register_module("norm", ::torch::nn::BatchNorm1d(::torch::nn::BatchNormOptions(3).affine(false)));
  ChangingNet() {
    for (const at::Tensor& parameter : side->parameters()) parameter.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& x) { return norm(Net::forward(x)); }
  void replace_norm() {
    norm = replace_module("norm", ::torch::nn::BatchNorm1d(::torch::nn::BatchNormOptions(3).affine(false)));
  }
};

using Changes = std::map<std::string, std::function<void(ChangingNet&)>>;
const Changes& changes_of_a_wrapped_module() {
  static const Changes all{
      {"'side.weight' was frozen", [](ChangingNet& net) { net.side->weight.requires_grad_(true); }},
      {"'a.weight' has been converted", [](ChangingNet& net) { net.to(at::kDouble); }},
      {"'b.bias' has been converted", [](ChangingNet& net) { net.b->bias.set_data(net.b->bias.to(at::kDouble)); }},
      {"parameter 'b.weight' was added",
       [](ChangingNet& net) { net.b = net.replace_module("b", ::torch::nn::Linear(6, 3)); }},
      {"parameter 'b.more' was added", [](ChangingNet& net) { net.b->register_parameter("more", at::zeros({3})); }},
      {"buffer 'norm.running_mean' was added", [](ChangingNet& net) { net.replace_norm(); }},
  };
  return all;
}

// Whether a step goes through ddp(x), or the module's own forward and set_weight().
TEST(Misuse, WhatChangedSinceItWasWrappedIsRefusedAtOnceOnEveryWayToAStep) {
  using Ddp = libtorch::DistributedDataParallel<ChangingNet>;
  const at::Tensor x = rows(0, 3);
  const std::map<std::string, std::function<void(Ddp&, ChangingNet&)>> ways{
      {"ddp(x)", [&](Ddp& ddp, ChangingNet&) { ddp(x); }},
      {"set_weight()", [&](Ddp& ddp, ChangingNet&) { ddp.set_weight(3); }},
      {"no_sync()",
       [&](Ddp& ddp, ChangingNet&) {
         const auto local = ddp.no_sync();
         ddp.set_weight(3);
       }},
      {"step_without_data()", [](Ddp& ddp, ChangingNet&) { ddp.step_without_data(); }},
      {"backward(rows, loss_of)",
       [&](Ddp& ddp, ChangingNet&) {
         ddp.backward(3, [&](std::int64_t, std::int64_t) {
           ddp.set_weight(3);
           return at::ones({}).requires_grad_(true);
         });
       }},
      {"check_replicas()", [](Ddp& ddp, ChangingNet&) { ddp.check_replicas(); }},
  };
  for (const auto& [words, change] : changes_of_a_wrapped_module()) {
    for (const auto& [way, take] : ways) {
      for (const int ranks : {1, 2}) {
        run_torch_ranks(ranks, [&](const Group& group) {
          // Whoever is second may hear of the first, wherever it is.
          const std::string text = outcome_of([&] {
            ChangingNet net;
            Ddp ddp(net, group);
            for (int step = 0; step < 5; ++step) {
              const at::Tensor loss = squares(net.forward(x));
              ddp.set_weight(3);
              loss.backward();
              ddp.check_replicas();
            }
            change(net);
            take(ddp, net);
          });
          expect_text(text, {words, "wrap the module again"});
        });
      }
    }
  }
}

TEST(Misuse, WhatChangesBetweenSetWeightAndBackwardIsRefusedInThatBackward) {
  run_torch_ranks(1, [](const Group& group) {
    for (const auto& [words, change] : changes_of_a_wrapped_module()) {
      if (words.find("was frozen") == std::string::npos && words.find("'b.bias'") == std::string::npos) continue;
      ChangingNet net;
      libtorch::DistributedDataParallel ddp(net, group);
      const at::Tensor loss = squares(net.forward(rows(0, 3)));
      ddp.set_weight(3);
      change(net);
      expect_text(outcome_of([&] { loss.backward(); }), {"InvalidArgument", words, "wrap the module again"});
    }
  });
}

TEST(Misuse, WhatIsTakenOutOfAWrappedModuleOrIsEachRanksOwnIsNone) {
  on_ranks<ChangingNet>(2, {.broadcast_buffers = false}, [](auto& net, auto& ddp) {
    net.replace_norm();
    net.unregister_module("side");
    for (int step = 0; step < 3; ++step) {
      if (step == 1) net.register_module("side", net.side);
      squares(ddp(rows(0, 3))).backward();
      ddp.check_replicas();
    }
  });
}

TEST(Misuse, AForwardThatGoesAroundTheWrapperIsRefusedInEveryStep) {
  for (const int ranks : {1, 2}) {
    for (const bool accumulates : {false, true}) {
      run_torch_ranks(ranks, [&](const Group& group) {
        // Whoever is second hears of the first.
        const std::string text = outcome_of([&] {
          Net net;
          libtorch::DistributedDataParallel ddp(net, group);
          const at::Tensor y = ddp(rows(0, 5));
          squares(y).backward({}, /*retain_graph=*/true);
          squares(y).backward();
          EXPECT_EQ(ddp.steps(), 2) << "back through the wrapper's outputs again";
          net.zero_grad(true);
          const auto local = ddp.no_sync(accumulates);
          if (accumulates) squares(ddp(rows(0, 5))).backward();
          squares(net.forward(rows(0, 2))).backward();
        });
        expect_text(text, {"a gradient without a weight", "call ddp(x) instead of the module's forward"});
      });
    }
  }
}

TEST(Misuse, ElementsThatShareMemoryAreRefused) {
  run_torch_ranks(2, [](const Group& group) {
    const std::map<std::string, at::Tensor> shared{
        {"expanded", at::zeros({1}).expand({4, 4})},
        {"column", at::zeros({4, 1}).expand({4, 3})},
        {"windows", at::zeros({9}).as_strided({4, 3}, {2, 1})},
    };
    for (const auto& [name, tensor] : shared) {
      for (const bool is_buffer : {false, true}) {
        Net net;
        is_buffer ? net.register_buffer(name, tensor) : net.register_parameter(name, tensor);
        expect_text(outcome_of([&] { libtorch::DistributedDataParallel(net, group); }),
                    {"InvalidArgument", "'" + name + "'", "share memory", "clone"});
      }
    }
  });
}

// Rank 0 leaves the step half done: the group is lost, and says so on rank 1.
TEST(Misuse, AGraphOfGradientsEndsTheGroup) {
  run_torch_ranks(2, [&](const Group& group) {
    Net net;
    // Rank 1 may hear of it before it has left the constructor.
    const std::string text = outcome_of([&] {
      libtorch::DistributedDataParallel ddp(net, group, many_buckets());
      squares(ddp(rows(1, 2))).backward({}, {}, /*create_graph=*/group->rank() == 0);
    });
    net.zero_grad(true);  // a gradient with a graph holds its parameter, and is held by it
    EXPECT_TRUE(text.starts_with(group->rank() == 0 ? "InvalidArgument: " : "PeerLost: ")) << text;
    expect_text(text, {"create_graph", group->rank() == 1 ? "rank 0" : ""});
  });
}

TEST(Misuse, ASparseGradientIsRefused) {
  run_torch_ranks(1, [&](const Group& group) {
    ::torch::nn::Embedding net(::torch::nn::EmbeddingOptions(5, 3).sparse(true));
    libtorch::DistributedDataParallel ddp(net, group);
    const auto local = ddp.no_sync();  // else a world of one leaves gradients as they are
    expect_text(outcome_of([&] { ddp(at::zeros({2}, at::kLong)).sum().backward(); }),
                {"InvalidArgument", "'weight'", "is sparse"});
  });
}

}  // namespace
}  // namespace lockstep::testing::wrapping_test
