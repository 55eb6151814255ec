// SPDX-License-Identifier: Apache-2.0
// An actor-critic that balances a pole (Barto, Sutton and Anderson, 1983): episodes of different lengths, and numbers
// that are drawn outside of backward.
#include <lockstep/data/sampler.h>

#include <cmath>
#include <vector>

#include "examples/06_libtorch_same_bits/run.h"

namespace lt = lockstep::libtorch;
namespace nn = torch::nn;
using torch::Tensor;

struct NetImpl : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 32));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(32));
  nn::Linear actor = register_module("actor", nn::Linear(32, 2));
  nn::Linear critic = register_module("critic", nn::Linear(32, 1));
  // Returns logits [rows, 2] and values [rows] of states [rows, 4].
  std::pair<Tensor, Tensor> forward(const Tensor& states) {
    const Tensor features = torch::tanh(norm(in(states)));
    return {actor(features), critic(features).squeeze(1)};
  }
};
TORCH_MODULE(Net);

// A cart that is pushed left or right, and a pole on it.
struct CartPole {
  double place, speed, angle, turn;
  bool push(bool is_right) {
    const double force = is_right ? 10 : -10, sine = std::sin(angle), cosine = std::cos(angle);
    const double pulled = (force + 0.05 * turn * turn * sine) / 1.1;
    const double turned = (9.8 * sine - cosine * pulled) / (0.5 * (4.0 / 3 - 0.1 * cosine * cosine / 1.1));
    const double moved = pulled - 0.05 * turned * cosine / 1.1;
    place += 0.02 * speed, speed += 0.02 * moved, angle += 0.02 * turn, turn += 0.02 * turned;
    return std::abs(place) < 2.4 && std::abs(angle) < 0.21;
  }
};

struct Episode {
  Tensor states, actions, returns;
};

// Plays with the policy of `net`, and draws from `generator` alone: the same whichever rank plays it.
Episode play(Net& net, at::Generator generator) {
  const torch::NoGradGuard no_grad;
  const Tensor start = torch::rand({4}, generator, torch::kDouble) * 0.1 - 0.05;
  const auto of = [&](int64_t i) { return start[i].item<double>(); };
  CartPole cart{of(0), of(1), of(2), of(3)};
  std::vector<float> states;
  std::vector<int64_t> actions;
  for (bool stands = true; stands && actions.size() < 60;) {
    const float state[] = {float(cart.place), float(cart.speed), float(cart.angle), float(cart.turn)};
    states.insert(states.end(), std::begin(state), std::end(state));
    const Tensor logits = net->forward(torch::tensor(at::ArrayRef<float>(state, 4)).unsqueeze(0)).first;
    actions.push_back(torch::softmax(logits, 1).multinomial(1, false, generator).item<int64_t>());
    stands = cart.push(actions.back() == 1);
  }
  std::vector<float> returns(actions.size());
  double sum = 0;
  for (size_t i = returns.size(); i-- > 0;) returns[i] = float(sum = 1 + 0.97 * sum);
  return {torch::tensor(states).view({-1, 4}), torch::tensor(actions), torch::tensor(returns)};
}

Tensor joined(const std::vector<Episode>& episodes, int64_t begin, int64_t end, Tensor Episode::*part) {
  std::vector<Tensor> parts;
  for (int64_t i = begin; i < end; ++i) parts.push_back(episodes[static_cast<size_t>(i)].*part);
  return torch::cat(parts);
}

int main(int argc, char** argv) {
  const Flags flags(argc, argv);
  torch::manual_seed(1);
  Net model;
  auto group = lockstep::init_process_group();
  lt::DistributedDataParallel ddp(model, group, {.reproducible = kSame, .seed = 1});
  lt::FusedAdamW optimizer(ddp.parameters(), torch::optim::AdamWOptions(1e-2));
  std::optional<lt::Snapshots> snapshots;
  if (!flags.snapshot_dir.empty()) {
    snapshots.emplace(flags.snapshot_dir, ddp, lockstep::SnapshotOptions{.every = flags.snapshot_every});
    snapshots->add("optimizer", optimizer);
    snapshots->restore();
  }
  // The episodes of a step that this rank plays: those of its micro-batches.
  const auto own = lockstep::data::micro_batches_of(kSame.micro_batches, group->rank(), group->size());
  const int64_t each = kSame.global_batch / kSame.micro_batches;
  while (ddp.steps() < flags.steps && !ddp.should_stop()) {
    std::vector<Episode> episodes;
    model->eval();
    for (int64_t number = own.begin * each; number < own.end * each; ++number) {
      episodes.push_back(play(model, ddp.generator(static_cast<uint32_t>(number))));
    }
    model->train();
    optimizer.zero_grad();
    ddp.backward(static_cast<int64_t>(episodes.size()), [&](int64_t begin, int64_t end) {
      const Tensor states = joined(episodes, begin, end, &Episode::states);
      const Tensor returns = joined(episodes, begin, end, &Episode::returns);
      const auto [logits, values] = [&] {
        const lt::Autocast bf16(torch::kCPU, torch::kBFloat16);
        return ddp(states);
      }();
      ddp.set_weight(states.size(0));  // the loss is a mean over moves, of which each micro-batch has other numbers
      const Tensor chosen = torch::log_softmax(logits.to(torch::kFloat), 1)
                                .gather(1, joined(episodes, begin, end, &Episode::actions).unsqueeze(1))
                                .squeeze(1);
      const Tensor gain = returns - values.to(torch::kFloat);
      return (gain.square() * 0.1 - chosen * gain.detach()).mean();
    });
    optimizer.step();
    print_loss(ddp, "loss");
    if (snapshots) snapshots->step();
  }
  if (snapshots && !ddp.should_stop()) snapshots->save("the last step");
  return ddp.exit_code();
}
