// SPDX-License-Identifier: Apache-2.0
// What a rank's trace costs: steps of a small MLP with it and without, in turns.
//
//   lockstep run -n 2 --trace run.json bench_trace [PAIRS]
//
// A pair is two blocks of 100 steps on the same ranks, one with the trace; which comes first changes from pair to pair.
// Printed are the median block of each kind, and the median of the pairs' ratios with its quartiles.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "lockstep/lockstep.h"
#include "runtime/trace/process_trace.h"

namespace ls = lockstep;

namespace {

constexpr int kBlock = 100;
constexpr std::int64_t kRows = 32;  // of each rank

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(std::lround(q * static_cast<double>(values.size() - 1)))];
}

void run(int pairs) {
  const auto group = ls::init_process_group();
  ls::nn::Sequential model{ls::nn::Linear(64, 128), ls::nn::ReLU(), ls::nn::Linear(128, 128), ls::nn::ReLU(),
                           ls::nn::Linear(128, 10)};
  ls::DistributedDataParallel ddp(model, group);
  ls::optim::SGD optimizer(ddp.parameters(), {.lr = 1e-3});
  ls::Generator random(static_cast<std::uint64_t>(group->rank()) + 1);
  std::vector<float> values(static_cast<std::size_t>(kRows * 74));
  std::generate(values.begin(), values.end(), [&] { return random.normal(); });
  const auto x = ls::Tensor::of({kRows, 64}, std::span(values).first(kRows * 64));
  const auto y = ls::Tensor::of({kRows, 10}, std::span(values).last(kRows * 10));
  // Microseconds of a step.
  const auto block = [&](bool is_on) {
    ls::trace::switch_trace(is_on);
    group->barrier().wait();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kBlock; ++i) {
      ddp.backward(ls::mse_loss(ddp(x), y));
      optimizer.step();
      optimizer.zero_grad();
    }
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / kBlock;
  };
  block(true);
  block(false);
  std::vector<double> with;
  std::vector<double> without;
  std::vector<double> ratios;
  for (int i = 0; i < pairs; ++i) {
    const bool first = i % 2 == 0;
    const double one = block(first);
    const double other = block(!first);
    with.push_back(first ? one : other);
    without.push_back(first ? other : one);
    ratios.push_back(with.back() / without.back());
  }
  if (group->rank() != 0) return;
  fmt::print(
      "{} pairs of {} steps, {} ranks: a step takes {:.1f} us without, {:.1f} us with; with / without {:.4f} ({:.4f} "
      "to {:.4f})\n",
      pairs, kBlock, group->size(), quantile(without, 0.5), quantile(with, 0.5), quantile(ratios, 0.5),
      quantile(ratios, 0.25), quantile(ratios, 0.75));
}

}  // namespace

int main(int count, char** arguments) { run(count > 1 ? std::max(1, std::atoi(arguments[1])) : 200); }
