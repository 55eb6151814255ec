// SPDX-License-Identifier: Apache-2.0
// Noise within a module's forward, by DdpOptions::seed.
#include <functional>
#include <vector>

#include "tests/libtorch/common.h"

namespace lockstep::testing::random_test {
namespace {

namespace nn = ::torch::nn;

struct Noisy : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 32));
  nn::Dropout dropout = register_module("dropout", nn::Dropout(0.5));
  at::Tensor forward(const at::Tensor& x) { return dropout(in(x)); }
};

using Ddp = libtorch::DistributedDataParallel<Noisy>;

// Which elements each forward keeps, in steps [begin, end) of two micro-batches. Torch's generator is one for all
// threads, so ranks take turns.
std::vector<at::Tensor> kept(const Group& group, const libtorch::DdpOptions& options, int begin, int end) {
  Noisy net;
  initialize(net, 1);
  Ddp ddp(net, group, options);
  ddp.set_steps(begin);
  std::vector<at::Tensor> result;
  const at::Tensor x = at::ones({3, 4});
  for (int step = begin; step < end; ++step) {
    net.zero_grad();
    for (int micro = 0; micro < 2; ++micro) {
      const auto local = ddp.no_sync(micro == 0);
      at::Tensor y;
      for (int turn = 0; turn < group->size(); ++turn) {
        if (turn == group->rank()) {
          y = ddp(x);
          result.push_back(y.detach().ne(0));
        }
        group->barrier().wait();
      }
      y.sum().backward();
    }
    at::rand({step + 1});  // the program draws, too
    group->barrier().wait();
  }
  return result;
}

// The program's own noise of steps [begin, end), two draws in each.
std::vector<at::Tensor> drawn(const Group& group, const libtorch::DdpOptions& options, int begin, int end) {
  Noisy net;
  Ddp ddp(net, group, options);
  ddp.set_steps(begin);
  std::vector<at::Tensor> result;
  for (int step = begin; step < end; ++step) {
    for (const std::uint32_t draw : {0, 1}) {
      at::Generator generator = ddp.generator(draw);
      result.push_back(at::rand({4}, generator));
      EXPECT_TRUE(at::equal(at::rand({4}, ddp.generator(draw)), result.back()));
      EXPECT_FALSE(at::equal(at::rand({4}, generator), result.back())) << "one generator continues";
    }
    at::rand({step + 1});  // of the process's
    ddp(at::ones({3, 4})).sum().backward();
  }
  return result;
}

// By `noise_of`, (group, options, begin, end): the noise of two draws in each step.
void expect_noise(
    const std::function<std::vector<at::Tensor>(const Group&, const libtorch::DdpOptions&, int, int)>& noise_of) {
  std::vector<std::vector<at::Tensor>> of_ranks(2);
  run_torch_ranks(2, [&](const Group& group) {
    auto& all = of_ranks[static_cast<std::size_t>(group->rank())];
    all = noise_of(group, {.seed = 7}, 0, 4);
    const std::vector<at::Tensor> later = noise_of(group, {.seed = 7}, 2, 4);
    ASSERT_EQ(later.size(), 4u);
    for (std::size_t i = 0; i < later.size(); ++i) EXPECT_TRUE(at::equal(later[i], all[4 + i])) << i;
    EXPECT_FALSE(at::equal(noise_of(group, {.seed = 8}, 0, 1)[0], all[0]));
  });
  std::vector<at::Tensor> all = of_ranks[0];
  all.insert(all.end(), of_ranks[1].begin(), of_ranks[1].end());
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(at::equal(all[i], all[j])) << i << ' ' << j;
  }
}

TEST(Seed, MakesEveryStepMicroBatchAndRankADifferentNoiseAndARunThatGoesOnTheSame) { expect_noise(kept); }
TEST(Generator, DrawsTheSameInARunThatResumesAndOthersOnEachRankAndInEachStep) { expect_noise(drawn); }

TEST(Seed, BeginsItsStepAnewWhereTheProgramGoesBackToOne) {
  run_torch_ranks(1, [](const Group& group) {
    Noisy net;
    Ddp ddp(net, group, {.seed = 7});
    const at::Tensor first = ddp(at::ones({3, 4})).detach();
    EXPECT_FALSE(at::equal(ddp(at::ones({3, 4})).detach(), first));
    ddp.set_steps(ddp.steps());
    EXPECT_TRUE(at::equal(ddp(at::ones({3, 4})).detach(), first));
  });
}

TEST(Seed, LeavesTorchsGeneratorsAloneWhereItIsNotSetAndInEvaluation) {
  run_torch_ranks(1, [](const Group& group) {
    Noisy net;
    for (const bool is_set : {false, true}) {
      Ddp ddp(net, group, is_set ? libtorch::DdpOptions{.seed = 7} : libtorch::DdpOptions{});
      const auto drawn = [](const auto& call) {
        ::torch::manual_seed(5);
        call();
        return at::rand({4});
      };
      const at::Tensor untouched = drawn([] {});
      ddp.eval();
      EXPECT_TRUE(at::equal(drawn([&] { ddp(at::ones({3, 4})); }), untouched));
      EXPECT_TRUE(at::equal(drawn([&] { at::rand({4}, ddp.generator()); }), untouched));
      ddp.train();
      ::torch::manual_seed(5);
      const at::Tensor first = ddp(at::ones({3, 4})).detach();
      ::torch::manual_seed(6);
      EXPECT_EQ(at::equal(ddp(at::ones({3, 4})).detach(), first), false);
      ::torch::manual_seed(5);
      ddp(at::ones({3, 4}));
      const at::Tensor after = at::rand({4});
      ::torch::manual_seed(5);
      net.forward(at::ones({3, 4}));
      EXPECT_EQ(at::equal(at::rand({4}), after), !is_set);
    }
  });
}

libtorch::DdpOptions fixed() {
  libtorch::DdpOptions options{.seed = 7};
  options.reproducible = {.micro_batches = 2, .global_batch = 4};
  return options;
}

// Ranks as threads share torch's generators, so one rank only; examples/06_libtorch_same_bits has processes.
TEST(FixedMicroBatches, SeedWhatIsDrawnInThemAndNothingElse) {
  run_torch_ranks(1, [](const Group& group) {
    Noisy net;
    Ddp ddp(net, group, fixed());
    std::vector<at::Tensor> noise;
    const auto step = [&] {
      net.zero_grad();
      ddp.backward(4, [&](std::int64_t begin, std::int64_t end) {
        noise.push_back(at::randn({end - begin, 4}));
        return ddp(noise.back()).sum();
      });
    };
    ::torch::manual_seed(5);
    const at::Tensor wanted = at::rand({4});
    ::torch::manual_seed(5);
    step();
    EXPECT_TRUE(at::equal(at::rand({4}), wanted)) << "what the program draws next to a step";
    EXPECT_FALSE(at::equal(noise[0], noise[1]));
    at::rand({3});
    step();
    ddp.set_steps(0);
    step();
    ASSERT_EQ(noise.size(), 6u);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(at::equal(noise[4 + i], noise[i])) << i;
      EXPECT_FALSE(at::equal(noise[2 + i], noise[i])) << i;
    }
  });
}

TEST(FixedMicroBatches, GeneratorsBetweenStepsAreOfTheKeyAndNotOfTheRank) {
  std::vector<at::Tensor> drawn(2), in_step(2);
  run_torch_ranks(2, [&](const Group& group) {
    Noisy net;
    Ddp ddp(net, group, fixed());
    const auto rank = static_cast<std::size_t>(group->rank());
    drawn[rank] = at::rand({4}, ddp.generator(3));
    EXPECT_FALSE(at::equal(at::rand({4}, ddp.generator(4)), drawn[rank]));
    ddp.backward(2, [&](std::int64_t begin, std::int64_t end) {
      in_step[rank] = at::rand({4}, ddp.generator(3));
      return ddp(at::ones({end - begin, 4})).sum();
    });
    EXPECT_FALSE(at::equal(at::rand({4}, ddp.generator(3)), drawn[rank])) << "of another step";
  });
  EXPECT_TRUE(at::equal(drawn[0], drawn[1]));
  EXPECT_FALSE(at::equal(in_step[0], in_step[1]));
  EXPECT_FALSE(at::equal(in_step[0], drawn[0]));
}

}  // namespace
}  // namespace lockstep::testing::random_test
