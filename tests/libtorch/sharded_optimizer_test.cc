// SPDX-License-Identifier: Apache-2.0
// ShardedOptimizer trains the weights that the optimizer trains that it is made of, to the last bit; what would be
// wrong with shards is refused.
#include "lockstep/libtorch/sharded_optimizer.h"

#include <cmath>
#include <concepts>
#include <latch>
#include <limits>
#include <set>

#include "lockstep/comm/values.h"
#include "lockstep/libtorch/grad_scaler.h"
#include "lockstep/libtorch/snapshots.h"
#include "tests/libtorch/common.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::sharded_optimizer_test {
namespace {

namespace nn = ::torch::nn;
namespace optim = ::torch::optim;
using libtorch::DistributedDataParallel;
using libtorch::ShardedOptimizer;

// Odd sizes; a layer that lies channels last, one that is used twice, one that is frozen, one that only some ranks use,
// and one that nobody does.
struct Mixed : nn::Module {
  explicit Mixed(std::uint64_t seed) {
    initialize(*this, seed);
    frozen->weight.set_requires_grad(false);
    const at::NoGradGuard no_grad;
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = at::tanh(conv(x)).flatten(1);
    y = at::tanh(frozen(first(y)));
    y = twice(at::tanh(twice(y)));
    return uses_some ? y + some(y) : y;
  }

  nn::Linear first = register_module("first", nn::Linear(45, 7));
  nn::Conv2d conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(3, 5, 2)));
  nn::Linear unused = register_module("unused", nn::Linear(3, 11));
  nn::Linear twice = register_module("twice", nn::Linear(7, 7));
  nn::Linear frozen = register_module("frozen", nn::Linear(7, 7));
  nn::Linear some = register_module("some", nn::Linear(7, 7));
  bool uses_some = true;
};

libtorch::DdpOptions options(Shard shard, std::size_t cap = 600) {
  return {.buckets = {.cap_bytes = cap, .first_cap_bytes = cap / 2}, .compare_every = 2, .shard = shard};
}

template <typename Base>
auto settings() {
  if constexpr (std::derived_from<Base, optim::SGD>) {
    return optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01);
  } else if constexpr (std::derived_from<Base, optim::AdamW>) {
    return optim::AdamWOptions(0.01);
  } else if constexpr (std::derived_from<Base, optim::Adam>) {
    return optim::AdamOptions(0.01).amsgrad(true);
  } else if constexpr (std::same_as<Base, optim::RMSprop>) {
    return optim::RMSpropOptions(0.01).momentum(0.5).centered(true);
  } else {
    return optim::AdagradOptions(0.01);
  }
}

// Uneven rows, none on some ranks, in two micro-batches each.
template <typename Optimizer, typename Module>
std::vector<Tensors> train(const Group& group, Module& net, DistributedDataParallel<Module>& ddp,
                           Optimizer& optimizer) {
  std::vector<Tensors> by_step;
  for (int step = 0; step < 5; ++step) {
    for (const at::Tensor& parameter : net.parameters()) parameter.mutable_grad().reset();
    for (int part = 0; part < 2; ++part) {
      net.uses_some = (group->rank() + step + part) % 2 == 0;
      const auto local = ddp.no_sync(part == 0);
      const std::int64_t rows = (group->rank() + 2 * part + step) % 4;
      const auto seed = static_cast<std::uint64_t>(100 * group->rank() + 10 * step + part);
      if (rows > 0) {
        ddp(random_tensor({rows, 3, 4, 4}, seed)).square().mean().backward();
      } else if (part == 1) {
        ddp.step_without_data();  // torch's convolution of this layout takes no 0 rows
      }
    }
    if constexpr (std::derived_from<Optimizer, libtorch::OptimizerShards>) {
      EXPECT_TRUE(std::isfinite(optimizer.clip_grad_norm(1e6))) << "of a group that has just come, too";
    }
    optimizer.step();
    by_step.push_back(weights_of(net));
  }
  ddp.check_replicas();
  return by_step;
}

// A module that is trained whole, and one in shards.
struct Pair {
  explicit Pair(const Group& the_group, std::size_t cap = 600)
      : group(the_group),
        plain(whole, group, options(Shard::none, cap)),
        sharded(cut, group, options(Shard::optimizer, cap)) {}
  // Returns the weights after each step, which are those of both.
  std::vector<Tensors> train_both(auto& optimizer, auto& of_shards) {
    const auto wanted = train(group, whole, plain, optimizer), seen = train(group, cut, sharded, of_shards);
    for (std::size_t step = 0; step < wanted.size(); ++step) {
      EXPECT_TRUE(same_bits(seen[step], wanted[step])) << "step " << step;
    }
    EXPECT_FALSE(same_bits(wanted.front(), wanted.back()));
    return seen;
  }
  Group group;
  Mixed whole{1}, cut{1};
  DistributedDataParallel<Mixed> plain, sharded;
};

template <typename Base>
void expect_same_weights() {
  for (const int ranks : {1, 2, 3}) {
    for (const std::size_t cap : {std::size_t{0}, std::size_t{600}, std::size_t{1} << 20}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, cap " + std::to_string(cap));
      run_torch_ranks(ranks, [&](const Group& group) {
        Pair both(group, cap);
        Base optimizer(both.plain.parameters(), settings<Base>());
        ShardedOptimizer<Base> of_shards(both.sharded, settings<Base>());
        both.train_both(optimizer, of_shards);
        EXPECT_FALSE(both.cut.unused->weight.grad().defined()) << "no rank uses it";
      });
    }
  }
}

TEST(ShardedOptimizer, SgdTrainsTheSameWeights) { expect_same_weights<optim::SGD>(); }
TEST(ShardedOptimizer, AdamTrainsTheSameWeights) { expect_same_weights<optim::Adam>(); }
TEST(ShardedOptimizer, AdamWTrainsTheSameWeights) { expect_same_weights<optim::AdamW>(); }
TEST(ShardedOptimizer, RmspropTrainsTheSameWeights) { expect_same_weights<optim::RMSprop>(); }
TEST(ShardedOptimizer, AdagradTrainsTheSameWeights) { expect_same_weights<optim::Adagrad>(); }
TEST(ShardedOptimizer, FusedSgdTrainsTheSameWeights) { expect_same_weights<libtorch::FusedSGD>(); }
TEST(ShardedOptimizer, FusedAdamTrainsTheSameWeights) { expect_same_weights<libtorch::FusedAdam>(); }
TEST(ShardedOptimizer, FusedAdamWTrainsTheSameWeights) { expect_same_weights<libtorch::FusedAdamW>(); }

TEST(ShardedOptimizer, HasTheStateOfItsShareAlone) {
  run_torch_ranks(3, [](const Group& group) {
    Mixed net(1);
    DistributedDataParallel ddp(net, group, options(Shard::optimizer));
    ShardedOptimizer<optim::AdamW> optimizer(ddp, settings<optim::AdamW>());
    train(group, net, ddp, optimizer);
    std::int64_t own = 0, all = 0;
    for (const auto& [key, state] : optimizer.state()) {
      own += static_cast<const optim::AdamWParamState&>(*state).exp_avg().numel();
    }
    for (const at::Tensor& parameter : ddp.parameters()) {
      if (parameter.grad().defined()) all += parameter.numel();
    }
    std::int64_t together = 0;
    for (const std::int64_t of_rank : all_gather_value(own, *group)) together += of_rank;
    EXPECT_EQ(together, all);
    EXPECT_LT(own, all);
  });
}

TEST(ShardedOptimizer, GroupsHaveSettingsOfTheirOwnAndTheRestKeepsItsValues) {
  run_torch_ranks(2, [](const Group& group) {
    Pair both(group);
    const auto groups_of = [](Mixed& net) {
      std::vector<optim::OptimizerParamGroup> groups;
      groups.emplace_back(net.first->parameters(), std::make_unique<optim::AdamWOptions>(0.1));
      groups.emplace_back(net.twice->parameters());
      return groups;
    };
    optim::AdamW optimizer(groups_of(both.whole), optim::AdamWOptions(0.01));
    ShardedOptimizer<optim::AdamW> of_shards(both.sharded, groups_of(both.cut), optim::AdamWOptions(0.01));
    for (auto* const each : {static_cast<optim::Optimizer*>(&optimizer), static_cast<optim::Optimizer*>(&of_shards)}) {
      static_cast<optim::AdamWOptions&>(each->param_groups()[1].options()).lr(0.03);
    }
    const Tensors before = weights_of(both.cut);
    const Tensors after = both.train_both(optimizer, of_shards).back();
    EXPECT_TRUE(at::equal(after.at("conv.weight"), before.at("conv.weight")));
    EXPECT_FALSE(at::equal(after.at("twice.weight"), before.at("twice.weight")));
  });
}

// What an operator of torch's rounds in 16 bits depends on where an element lies in its array.
TEST(ShardedOptimizer, MeansOfSixteenBitsAreRoundedOnceAsWithoutShards) {
  run_torch_ranks(3, [](const Group& group) {
    nn::Linear whole(5, 7), cut(5, 7);
    for (nn::Linear net : {whole, cut}) {
      initialize(*net, 3);
      net->to(at::kBFloat16);
    }
    DistributedDataParallel plain(whole, group, options(Shard::none));
    DistributedDataParallel sharded(cut, group, options(Shard::optimizer));
    optim::SGD optimizer(plain.parameters(), optim::SGDOptions(0.1).momentum(0.9));
    ShardedOptimizer<optim::SGD> of_shards(sharded, optim::SGDOptions(0.1).momentum(0.9));
    for (std::uint64_t step = 0; step < 4; ++step) {
      const at::Tensor x = random_tensor({2 + group->rank(), 5}, step + 10 * static_cast<std::uint64_t>(group->rank()))
                               .to(at::kBFloat16);
      for (const at::Tensor& parameter : plain.parameters()) parameter.mutable_grad().reset();
      plain(x).square().mean().backward();
      optimizer.step();
      of_shards.zero_grad();
      sharded(x).square().mean().backward();
      if (step == 0) {  // later steps begin with weights of other roundings
        for (std::size_t i = 0; i < 2; ++i) {
          const at::Tensor& shard = of_shards.param_groups()[0].params()[i];
          const std::int64_t begin = shard.storage_offset();
          const at::Tensor mean = plain.parameters()[i].grad().view(-1).slice(0, begin, begin + shard.numel());
          EXPECT_EQ(shard.grad().scalar_type(), at::kBFloat16);
          EXPECT_TRUE(at::equal(shard.grad(), mean)) << "rounded once, from the same sum";
        }
      }
      of_shards.step();
      expect_close(weights_of(*cut), weights_of(*whole), "step", 0.02);
    }
    sharded.check_replicas();
  });
}

// As their weights have, in snapshots_contract.h.
TEST(ShardedOptimizer, NormsOfFixedMicroBatchesHaveTheSameBitsAtAnyNumberOfRanks) {
  std::set<double> norms;
  for (const int ranks : {1, 2, 3}) {
    run_torch_ranks(ranks, [&](const Group& group) {
      nn::Linear net(6, 5);
      initialize(*net, 2);
      DistributedDataParallel ddp(
          net, group, {.reproducible = {.micro_batches = 6, .global_batch = 12}, .shard = Shard::optimizer});
      ShardedOptimizer<optim::AdamW> optimizer(ddp, optim::AdamWOptions(0.05));
      const at::Tensor x = random_tensor({12, 6}, 1).chunk(ranks)[static_cast<std::size_t>(group->rank())];
      ddp.backward(12 / ranks,
                   [&](std::int64_t from, std::int64_t to) { return ddp(x.slice(0, from, to)).square().mean(); });
      const double norm = optimizer.clip_grad_norm(0.1);
      if (group->rank() == 0) norms.insert(norm);
    });
  }
  EXPECT_EQ(norms.size(), 1u);
}

TEST(ShardedOptimizer, TheNormIsThatOfTheWholeMeanInItsDtype) {
  for (const int ranks : {1, 2, 3}) {
    for (const auto& [dtype, factor] : {std::pair(at::kFloat, 1.0), {at::kDouble, 1.0}, {at::kDouble, 1e60}}) {
      run_torch_ranks(ranks, [&, dtype = dtype, factor = factor](const Group& group) {
        Mixed whole(1), cut(1);
        for (Mixed* const net : {&whole, &cut}) net->to(dtype);
        DistributedDataParallel plain(whole, group, options(Shard::none));
        DistributedDataParallel sharded(cut, group, options(Shard::optimizer));
        ShardedOptimizer<optim::SGD> optimizer(sharded, optim::SGDOptions(1));
        const at::Tensor x = random_tensor({3, 3, 4, 4}, static_cast<std::uint64_t>(group->rank())).to(dtype);
        (plain(x).square().mean() * factor).backward();
        (sharded(x).square().mean() * factor).backward();
        const auto norm_of = [](const Tensors& tensors) {
          double sum = 0;
          for (const auto& [name, tensor] : tensors) sum += tensor.to(at::kDouble).square().sum().item<double>();
          return std::sqrt(sum);
        };
        EXPECT_NEAR(optimizer.clip_grad_norm(0.25) / norm_of(gradients_of(whole)), 1, 1e-14) << ranks << dtype;
        Tensors moved = weights_of(cut);
        optimizer.step();
        for (const auto& [name, weights] : weights_of(cut)) moved[name].sub_(weights);
        EXPECT_NEAR(norm_of(moved), 0.25, dtype == at::kFloat ? 1e-5 : 1e-6) << ranks << dtype;
      });
    }
  }
}

TEST(ShardedOptimizer, AnInfOfOneRanksShardLeavesTheStepOutOnAll) {
  run_torch_ranks(3, [](const Group& group) {
    nn::Linear net(9, 1);
    initialize(*net, 2);
    DistributedDataParallel ddp(net, group, options(Shard::optimizer));
    ShardedOptimizer<optim::SGD> optimizer(ddp, std::vector<optim::OptimizerParamGroup>(), optim::SGDOptions(0.1));
    optimizer.param_groups().emplace_back(net->parameters(), optimizer.defaults().clone());
    libtorch::GradScaler scaler({.init_scale = 4});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      at::Tensor x = random_tensor({2, 9}, static_cast<std::uint64_t>(step));
      // A gradient of one weight alone: one rank's shard has it.
      if (step == 1 && group->rank() == 1) x[0][8] = std::numeric_limits<float>::infinity();
      const Tensors before = weights_of(*net);
      scaler.scale(ddp(x).sum()).backward();
      const at::Tensor found = scaler.step(optimizer);
      scaler.update();
      EXPECT_EQ(found.item<float>() != 0, step == 1);
      EXPECT_EQ(same_bits(weights_of(*net), before), step == 1) << step;
      EXPECT_EQ(scaler.get_scale(), step == 0 ? 4 : 2);
    }
    ddp.check_replicas();
  });
}

// torch's add_param_group() is not virtual, and param_groups() is anybody's.
TEST(ShardedOptimizer, GroupsThatComeLateAreSteppedWhicheverWayTheyCome) {
  using Way = void (*)(ShardedOptimizer<optim::AdamW>&, const optim::OptimizerParamGroup&);
  const std::vector<Way> ways{
      [](auto& optimizer, const auto& group) { optimizer.add_param_group(group); },
      [](auto& optimizer, const auto& group) { static_cast<optim::Optimizer&>(optimizer).add_param_group(group); },
      [](auto& optimizer, const auto& group) { optimizer.param_groups().push_back(group); },
      [](auto& optimizer, const auto& group) {
        auto& tensors = optimizer.param_groups()[0].params();
        tensors.insert(tensors.end(), group.params().begin(), group.params().end());
      },
  };
  for (const int ranks : {1, 2, 3}) {
    for (const Way& add : ways) {
      run_torch_ranks(ranks, [&](const Group& group) {
        Pair both(group);
        const optim::AdamWOptions rate(0.01);
        optim::AdamW optimizer(both.whole.twice->parameters(), rate);
        std::vector<optim::OptimizerParamGroup> first;
        first.emplace_back(both.cut.twice->parameters());
        ShardedOptimizer<optim::AdamW> of_shards(both.sharded, std::move(first), rate);
        both.train_both(optimizer, of_shards);
        optimizer.add_param_group({both.whole.first->parameters(), std::make_unique<optim::AdamWOptions>(rate)});
        add(of_shards, {both.cut.first->parameters(), std::make_unique<optim::AdamWOptions>(rate)});
        const auto seen = both.train_both(optimizer, of_shards);
        EXPECT_FALSE(at::equal(seen.front().at("first.weight"), seen.back().at("first.weight")));
        EXPECT_TRUE(at::equal(seen.front().at("conv.weight"), seen.back().at("conv.weight")));
      });
    }
  }
}

TEST(ShardedOptimizer, ATensorThatIsNoShareIsRefusedOnEveryRankAtAnyNumber) {
  for (const int ranks : {1, 2, 3}) {
    run_torch_ranks(ranks, [](const Group& group) {
      nn::Linear net(9, 4);
      initialize(*net, 2);
      DistributedDataParallel ddp(net, group, options(Shard::optimizer));
      ShardedOptimizer<optim::SGD> optimizer(ddp, optim::SGDOptions(0.1));
      const Tensors before = weights_of(*net);
      const at::Tensor foreign = at::zeros({3}), own = net->weight;
      expect_text(error_of([&] { optimizer.add_param_group({{foreign}}); }),
                  {"parameter 0 of group 1 is not a parameter of its"});
      expect_text(error_of([&] { optimizer.add_param_group({{own}}); }), {"parameter 0 of group 1", "twice"});
      EXPECT_EQ(optimizer.param_groups().size(), 1u);
      ddp(random_tensor({2, 9}, 1)).square().mean().backward();
      for (const at::Tensor& tensor : {foreign, own}) {
        optimizer.param_groups().emplace_back(std::vector<at::Tensor>{tensor}, optimizer.defaults().clone());
        const char* const wanted = tensor.is_same(own) ? "twice" : "not a parameter of its";
        expect_text(error_of([&] { optimizer.step(); }), {"parameter 0 of group 1", wanted});
        expect_text(error_of([&] { optimizer.clip_grad_norm(1); }), {"parameter 0 of group 1", wanted});
        optimizer.param_groups().pop_back();
      }
      at::Tensor& first = optimizer.param_groups()[0].params()[0];
      const at::Tensor shard = std::exchange(first, first.detach().clone());
      expect_text(error_of([&] { optimizer.step(); }), {"parameter 0 of group 0 is not a parameter of its"});
      first = shard;
      EXPECT_TRUE(same_bits(weights_of(*net), before));
      optimizer.step();
      EXPECT_FALSE(same_bits(weights_of(*net), before));
    });
  }
}

// A layer that no rank uses in some steps is stepped where torch's zero_grad() leaves zeros.
template <typename Optimizer, typename Clear>
Tensors train_with(DistributedDataParallel<Mixed>& ddp, Mixed& net, Optimizer& optimizer, const Clear& clear,
                   bool leaves_out) {
  for (int step = 0; step < 6; ++step) {
    clear(optimizer);
    net.uses_some = step % 3 == 1;
    ddp(random_tensor({2, 3, 4, 4}, static_cast<std::uint64_t>(step))).square().mean().backward();
    if (step != 3 || !leaves_out) optimizer.step();  // as a GradScaler leaves one out
  }
  return weights_of(net);
}

TEST(ShardedOptimizer, GradientsAreClearedAsTorchsClassClearsThem) {
  const auto of_base = [](auto& optimizer) { static_cast<optim::Optimizer&>(optimizer).zero_grad(); };
  const auto own = [](auto& optimizer) { optimizer.zero_grad(); };
#if TORCH_VERSION_MAJOR >= 2
  const auto zeros_of_base = [](auto& optimizer) { static_cast<optim::Optimizer&>(optimizer).zero_grad(false); };
  const auto zeros = [](auto& optimizer) { optimizer.zero_grad(false); };
#else
  const auto zeros_of_base = of_base;
  const auto zeros = own;
#endif
  for (const int ranks : {1, 2, 3}) {
    run_torch_ranks(ranks, [&](const Group& group) {
      const auto expect_same = [&](const auto& clear, const auto& as_torch, bool has_all) {
        Mixed whole(1), cut(1);
        DistributedDataParallel plain(whole, group, options(Shard::none));
        DistributedDataParallel sharded(cut, group, options(Shard::optimizer));
        const auto groups_of = [&](Mixed& net) {
          std::vector<optim::OptimizerParamGroup> groups;
          groups.emplace_back(net.some->parameters());
          if (!has_all) return groups;
          for (const auto& part : {net.first->parameters(), net.conv->parameters(), net.twice->parameters()}) {
            groups.emplace_back(part);
          }
          groups.back().params().push_back(net.frozen->bias);
          return groups;
        };
        optim::SGD optimizer(groups_of(whole), settings<optim::SGD>());
        ShardedOptimizer<optim::SGD> of_shards(sharded, groups_of(cut), settings<optim::SGD>());
        const Tensors wanted = train_with(plain, whole, optimizer, as_torch, has_all);
        EXPECT_TRUE(same_bits(train_with(sharded, cut, of_shards, clear, has_all), wanted)) << ranks;
      };
      for (const bool has_all : {true, false}) {
        expect_same(own, of_base, has_all);
        expect_same(zeros, zeros_of_base, has_all);
        expect_same(of_base, of_base, has_all);
        expect_same(zeros_of_base, zeros_of_base, has_all);
      }
    });
  }
}

// A cache line has all elements of a parameter: one of the ranks has no shard of it.
TEST(ShardedOptimizer, AGradientOrMemoryThatTheProgramReplacesIsRefusedOnRanksWithoutAShardToo) {
  run_torch_ranks(2, [](const Group& group) {
    nn::Linear net(2, 1);
    initialize(*net, 2);
    DistributedDataParallel ddp(net, group, options(Shard::optimizer));
    ShardedOptimizer<optim::SGD> optimizer(ddp, optim::SGDOptions(0.1));
    const auto backward = [&] { ddp(random_tensor({3, 2}, 1)).square().mean().backward(); };
    backward();
    at::Tensor& gradient = net->bias.mutable_grad();
    const at::Tensor given = std::exchange(gradient, at::ones({1}));
    const Tensors before = weights_of(*net);
    expect_text(error_of([&] { optimizer.step(); }), {"has replaced the gradient of 'bias'"});
    EXPECT_TRUE(same_bits(weights_of(*net), before));
    gradient = given;
    optimizer.step();
    EXPECT_FALSE(same_bits(weights_of(*net), before));
    optimizer.zero_grad();
    backward();
    net->weight.set_data(net->weight.clone());
    expect_text(error_of([&] { optimizer.step(); }), {"'weight' lies in other memory"});
  });
}

TEST(ShardedOptimizer, AGradientThatNoRankHasCannotBeReadByMistake) {
  run_torch_ranks(2, [](const Group& group) {
    Mixed net(1);
    DistributedDataParallel ddp(net, group, options(Shard::optimizer));
    ShardedOptimizer<optim::SGD> optimizer(ddp, optim::SGDOptions(0.1));
    ddp(random_tensor({3, 3, 4, 4}, 1)).square().mean().backward();
    const at::Tensor& gradient = net.first->weight.grad();
    EXPECT_TRUE(gradient.isnan().all().item<bool>());
    EXPECT_EQ(gradient.sizes(), net.first->weight.sizes());
    EXPECT_EQ(gradient.storage().nbytes(), sizeof(float)) << "no memory for it";
    EXPECT_TRUE(std::isnan(gradient.norm().item<float>()));
    EXPECT_ANY_THROW(::torch::nn::utils::clip_grad_norm_(net.parameters(), 1.0));
    optimizer.step();
    optimizer.zero_grad(/*set_to_none=*/false);
    EXPECT_TRUE(net.first->weight.grad().eq(0).all().item<bool>());
    optimizer.zero_grad(/*set_to_none=*/true);
    EXPECT_FALSE(net.first->weight.grad().defined());
  });
}

TEST(ShardedOptimizer, WhatWouldBeWrongIsRefused) {
  std::latch both(2);
  run_torch_ranks(2, [&](const Group& group) {
    Mixed net(1);
    const at::Tensor x = random_tensor({3, 3, 4, 4}, 1);
    {
      Mixed other(1);
      DistributedDataParallel plain(other, group, options(Shard::none));
      expect_text(error_of([&] { ShardedOptimizer<optim::SGD>(plain, optim::SGDOptions(0.1)); }), {"has no shards"});
      libtorch::DdpOptions hooked = options(Shard::optimizer);
      hooked.comm_hook = bf16_compress_hook();
      expect_text(error_of([&] { DistributedDataParallel ddp(net, group, hooked); }), {"which exchanges whole"});
      nn::Linear spread(4, 4);
      spread->weight.set_data(at::zeros({4, 8}).slice(1, 0, 8, 2));
      expect_text(error_of([&] { DistributedDataParallel ddp(spread, group, options(Shard::optimizer)); }),
                  {"the elements of 'weight' do not lie together in memory (strides [8, 2])"});
    }
    DistributedDataParallel ddp(net, group, options(Shard::optimizer));
    {
      std::vector<optim::OptimizerParamGroup> groups;
      groups.emplace_back(std::vector<at::Tensor>{net.first->weight, at::zeros({3})});
      expect_text(error_of([&] { ShardedOptimizer<optim::SGD>(ddp, std::move(groups), optim::SGDOptions(0.1)); }),
                  {"parameter 1 of group 0 is not a parameter of its"});
    }
    auto optimizer = std::make_unique<ShardedOptimizer<optim::SGD>>(ddp, optim::SGDOptions(0.1));
    {
      const TemporaryFolder folder;
      libtorch::Snapshots snapshots(folder / "run", ddp);
      expect_text(error_of([&] { snapshots.add("optimizer", *optimizer); }), {"'conv.weight' lie in another order"});
    }
    expect_text(error_of([&] { ShardedOptimizer<optim::SGD>(ddp, optim::SGDOptions(0.1)); }),
                {"another ShardedOptimizer has the shards of this"});
    expect_text(error_of([&] { optimizer->step(); }), {"no shards of averaged gradients, in step 0"});
    ddp(x).square().mean().backward();
    expect_text(error_of([&] { optimizer->clip_grad_norm(0); }), {"max_norm 0 is not above 0"});
    optimizer->step();
    expect_text(error_of([&] { optimizer->step(); }), {"no shards of averaged gradients, in step 1"});
    expect_text(error_of([&] { archive_of(*optimizer); }), {"save() was called, but each rank has only its shard"});
    optimizer->zero_grad();
    ddp(x).square().mean().backward();
    both.arrive_and_wait();  // what follows fails the group
    expect_text(error_of<Error>([&] { ddp(x).square().mean().backward(); }),
                {"still has the gradient of an earlier step at a backward with Shard::optimizer"});
  });
  std::latch made(2);
  run_torch_ranks(2, [&](const Group& group) {
    Mixed net(1);
    DistributedDataParallel ddp(net, group, options(Shard::optimizer));
    made.arrive_and_wait();
    optim::SGD plain(ddp.parameters(), optim::SGDOptions(0.1));
    expect_text(error_of([&] {
                  ddp(random_tensor({3, 3, 4, 4}, 1)).square().mean().backward();
                }),
                {"no ShardedOptimizer has the shards"});
  });
}

TEST(ShardedOptimizer, EndsBeforeOrBehindItsDistributedDataParallel) {
  run_torch_ranks(2, [](const Group& group) {
    Mixed net(1);
    auto ddp = std::make_unique<DistributedDataParallel<Mixed>>(net, group, options(Shard::optimizer));
    auto optimizer = std::make_unique<ShardedOptimizer<optim::SGD>>(*ddp, optim::SGDOptions(0.1));
    const at::Tensor x = random_tensor({3, 3, 4, 4}, 1);
    (*ddp)(x).square().mean().backward();
    optimizer->step();
    optimizer.reset();
    optimizer = std::make_unique<ShardedOptimizer<optim::SGD>>(*ddp, optim::SGDOptions(0.1));
    optimizer->zero_grad();
    (*ddp)(x).square().mean().backward();
    ddp.reset();
    EXPECT_FALSE(net.first->weight.grad().defined()) << "NaN is nobody's gradient";
    EXPECT_NE(error_of([&] { optimizer->step(); }), "");
  });
}

}  // namespace
}  // namespace lockstep::testing::sharded_optimizer_test
