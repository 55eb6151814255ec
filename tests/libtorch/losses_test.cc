// SPDX-License-Identifier: Apache-2.0
// Losses that are means or sums over random partitions, in which ranks use different parts, or none: as in one process.
#include <functional>

#include "tests/libtorch/common.h"

namespace lockstep::testing::losses_test {
namespace {

namespace nn = ::torch::nn;

constexpr int kExperts = 4;

// The sum of those experts that a batch is for.
struct Experts : nn::Module {
  std::vector<nn::Linear> experts;
  Experts() {
    for (int i = 0; i < kExperts; ++i) experts.push_back(register_module("e" + std::to_string(i), nn::Linear(4, 3)));
  }
  at::Tensor forward(const at::Tensor& x, unsigned wanted) {
    at::Tensor y = at::zeros({x.size(0), 3});
    for (unsigned i = 0; i < kExperts; ++i) {
      if ((wanted >> i & 1) != 0) y = y + at::tanh(experts[i](x));
    }
    return y;
  }
};

// Rows of one micro-batch of one rank.
struct Part {
  std::int64_t rows = 0;
  unsigned experts = 1;
  at::Tensor input(std::uint64_t seed) const { return random_tensor({rows, 4}, seed); }
};

struct Case {
  Loss loss = Loss::mean;
  int ranks = 2;
  int micro_batches = 1;
  std::vector<std::vector<std::vector<Part>>> parts;  // by step, micro-batch and rank

  std::uint64_t seed(std::size_t step, std::size_t micro, std::size_t rank) const {
    return 1000 + 100 * step + 10 * micro + rank;
  }
};

Case random_case(std::uint64_t seed, Loss loss) {
  Generator random(seed);
  Case result{.loss = loss,
              .ranks = 1 + static_cast<int>(random.below(4)),
              .micro_batches = 1 + static_cast<int>(random.below(3)),
              .parts = {}};
  for (int step = 0; step < 5; ++step) {
    auto& micros = result.parts.emplace_back();
    for (int micro = 0; micro < result.micro_batches; ++micro) {
      auto& ranks = micros.emplace_back();
      for (int rank = 0; rank < result.ranks; ++rank) {
        ranks.push_back({.rows = random.below(3) == 0 ? 0 : static_cast<std::int64_t>(1 + random.below(5)),
                         .experts = 1 + static_cast<unsigned>(random.below(15))});
      }
    }
    micros[0][0].rows = std::max<std::int64_t>(micros[0][0].rows, 1);  // somebody has data
  }
  return result;
}

at::Tensor loss_of(const at::Tensor& y, Loss loss) { return loss == Loss::sum ? y.square().sum() : y.square().mean(); }

// Each step's gradients, and the weights at the end. backward_of(step): of all its micro-batches.
std::vector<Tensors> train(Experts& net, const Case& it, const std::function<void(std::size_t step)>& backward_of) {
  // Moves what has a gradient of zero, too. A large epsilon, for Adam divides gradients by their own size.
  ::torch::optim::AdamW optimizer(net.parameters(), ::torch::optim::AdamWOptions(0.05).weight_decay(0.3).eps(0.1));
  std::vector<Tensors> result;
  for (std::size_t step = 0; step < it.parts.size(); ++step) {
    net.zero_grad(true);
    backward_of(step);
    result.push_back(gradients_of(net));
    optimizer.step();
  }
  result.push_back(weights_of(net));
  return result;
}

// One process, on the rows that there are.
std::vector<Tensors> train_alone(const Case& it) {
  Experts net;
  initialize(net, 1);
  return train(net, it, [&](std::size_t step) {
    std::int64_t total = 0;
    for (const auto& ranks : it.parts[step]) {
      for (const Part& part : ranks) total += part.rows;
    }
    for (std::size_t micro = 0; micro < it.parts[step].size(); ++micro) {
      for (std::size_t rank = 0; rank < it.parts[step][micro].size(); ++rank) {
        const Part& part = it.parts[step][micro][rank];
        if (part.rows == 0) continue;
        const at::Tensor loss = loss_of(net.forward(part.input(it.seed(step, micro, rank)), part.experts), it.loss);
        const double share = static_cast<double>(part.rows) / static_cast<double>(total);
        (it.loss == Loss::sum ? loss : loss * share).backward();
      }
    }
  });
}

std::vector<Tensors> train_on(const Group& group, const Case& it, bool weight_outputs) {
  Experts net;
  initialize(net, 1);
  libtorch::DistributedDataParallel ddp(
      net, group,
      {.buckets = {.cap_bytes = 0, .first_cap_bytes = 0}, .loss = it.loss, .weight_outputs = weight_outputs});
  const auto rank = static_cast<std::size_t>(group->rank());
  return train(net, it, [&](std::size_t step) {
    for (std::size_t micro = 0; micro < it.parts[step].size(); ++micro) {
      const Part& part = it.parts[step][micro][rank];
      const auto local = ddp.no_sync(micro + 1 < it.parts[step].size());
      loss_of(ddp(part.input(it.seed(step, micro, rank)), part.experts), it.loss).backward();
    }
  });
}

void compare(Loss loss) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const Case it = random_case(seed, loss);
    const std::vector<Tensors> wanted = train_alone(it);
    run_torch_ranks(it.ranks, [&](const Group& group) {
      for (const bool weight_outputs : {false, true}) {
        const std::vector<Tensors> seen = train_on(group, it, weight_outputs);
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          expect_close(seen[i], wanted[i], "case " + std::to_string(seed) + ", step " + std::to_string(i));
        }
      }
    });
  }
}

TEST(Losses, OfMeansAreThatOfOneProcessWhateverEachRankUses) { compare(Loss::mean); }
TEST(Losses, OfSumsAreThatOfOneProcessWhateverEachRankUses) { compare(Loss::sum); }

}  // namespace
}  // namespace lockstep::testing::losses_test
