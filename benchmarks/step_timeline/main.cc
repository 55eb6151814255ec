// SPDX-License-Identifier: Apache-2.0
// The times of one training step on every rank, as JSON on rank 0's standard output: what docs/img/draw_step.py draws.
//
//   lockstep run -n 2 bench_step_timeline [STEPS]
//
// Trains an MLP of eight layers and takes the step of the last half that was the shortest on rank 0: one that other
// processes of the machine disturbed least. The clock is the machine's own, the same for the processes of one host.
// Times are microseconds from the earliest forward.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/comm/init/init_process_group.h"
#include "lockstep/lockstep.h"

namespace ls = lockstep;

namespace {

using Time = ls::trace::Time;

struct Step {
  Time forward;
  Time backward;
  Time optimizer;
  Time end;
  ls::trace::StepRecord record;
};

constexpr std::int64_t kRows = 64;  // of each rank
constexpr std::int64_t kWidth = 512;

// The time points of a step as numbers, so that ranks can gather them: the same count on every rank.
std::vector<std::int64_t> numbers_of(const Step& step) {
  const auto number = [](Time time) { return std::int64_t{time.time_since_epoch().count()}; };
  std::vector<std::int64_t> numbers{
      number(step.forward),       number(step.backward),     number(step.record.last_gradient_ready),
      number(step.record.end),    number(step.optimizer),    number(step.end),
      step.record.waited.count(), step.record.hidden.count()};
  for (const auto& bucket : step.record.buckets) {
    numbers.insert(numbers.end(), {static_cast<std::int64_t>(bucket.bytes), number(bucket.ready),
                                   number(bucket.launched), number(bucket.finished)});
  }
  return numbers;
}

// One rank's line of the JSON. `begin`: the time that counts as 0.
std::string json_of(int rank, const std::vector<std::int64_t>& numbers, std::int64_t begin) {
  const auto us = [&](std::size_t i) { return static_cast<double>(numbers[i] - begin) / 1e3; };
  std::string text =
      fmt::format(R"({{"rank": {}, "forward": {:.1f}, "backward": {:.1f}, "last_gradient": {:.1f}, "reduced": {:.1f}, )"
                  R"("optimizer": {:.1f}, "end": {:.1f}, "waited": {:.1f}, "hidden": {:.1f}, "buckets": [)",
                  rank, us(0), us(1), us(2), us(3), us(4), us(5), static_cast<double>(numbers[6]) / 1e3,
                  static_cast<double>(numbers[7]) / 1e3);
  for (std::size_t i = 8; i < numbers.size(); i += 4) {
    text += fmt::format(R"({}{{"bytes": {}, "ready": {:.1f}, "launched": {:.1f}, "finished": {:.1f}}})",
                        i == 8 ? "" : ", ", numbers[i], us(i + 1), us(i + 2), us(i + 3));
  }
  return text + "]}";
}

Step train_one(ls::DistributedDataParallel& ddp, ls::optim::Optimizer& optimizer, const ls::Tensor& x,
               const ls::Tensor& y) {
  Step step;
  step.forward = std::chrono::steady_clock::now();
  const ls::Tensor loss = ls::mse_loss(ddp(x), y);
  step.backward = std::chrono::steady_clock::now();
  ddp.backward(loss);
  step.optimizer = std::chrono::steady_clock::now();
  optimizer.step();
  optimizer.zero_grad();
  step.end = std::chrono::steady_clock::now();
  step.record = ddp.last_step();
  return step;
}

void run(std::int64_t steps) {
  const auto group = ls::init_process_group();
  ls::nn::Sequential model;
  for (int layer = 0; layer < 8; ++layer) model.append(ls::nn::Linear(kWidth, kWidth)).append(ls::nn::ReLU());
  ls::DistributedDataParallel ddp(model, group);
  ls::optim::SGD optimizer(ddp.parameters(), {.lr = 1e-3});
  ls::Generator random(static_cast<std::uint64_t>(group->rank()) + 1);
  std::vector<float> values(2 * kRows * kWidth);
  std::generate(values.begin(), values.end(), [&] { return random.normal(); });
  const auto x = ls::Tensor::of({kRows, kWidth}, std::span(values).first(kRows * kWidth));
  const auto y = ls::Tensor::of({kRows, kWidth}, std::span(values).last(kRows * kWidth));

  std::vector<Step> all;
  for (std::int64_t i = 0; i < steps; ++i) all.push_back(train_one(ddp, optimizer, x, y));

  const auto shortest = std::min_element(all.begin() + steps / 2, all.end(), [](const Step& left, const Step& right) {
    return left.end - left.forward < right.end - right.forward;
  });
  std::int64_t chosen = shortest - all.begin();
  group->broadcast({&chosen, 1, ls::DType::i64}, 0).wait();

  std::vector<std::int64_t> mine = numbers_of(all[chosen]);
  std::vector<std::int64_t> gathered(mine.size() * group->size());
  group->all_gather(std::span(mine), std::span(gathered)).wait();
  if (group->rank() != 0) return;
  std::vector<std::vector<std::int64_t>> ranks(group->size());
  std::int64_t begin = gathered[0];
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].assign(gathered.begin() + r * mine.size(), gathered.begin() + (r + 1) * mine.size());
    begin = std::min(begin, ranks[r][0]);
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) fmt::print("{}\n", json_of(static_cast<int>(r), ranks[r], begin));
}

}  // namespace

int main(int count, char** arguments) { run(count > 1 ? std::max(2L, std::atol(arguments[1])) : 400); }
