// SPDX-License-Identifier: Apache-2.0
// What a rank's trace costs, or its look for NaN in its gradients: steps of an MLP with it and without, in turns.
//
//   lockstep run -n 2 --trace run.json bench_trace [PAIRS] [trace|nan] [WIDTH]
//
// A pair is two blocks of 100 steps on the same ranks, one with it; which comes first changes from pair to pair. WIDTH
// is that of the hidden layers, 128 unless said otherwise: the small MLP.
// Printed are the median block of each kind, and the median of the pairs' ratios with its quartiles.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
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

// An MLP with an optimizer of its own.
struct Training {
  Training(std::int64_t width, const std::shared_ptr<ls::ProcessGroup>& group, ls::NotFinite not_finite)
      : model{ls::nn::Linear(64, width), ls::nn::ReLU(), ls::nn::Linear(width, width), ls::nn::ReLU(),
              ls::nn::Linear(width, 10)},
        ddp(model, group, {.not_finite = not_finite}),
        optimizer(ddp.parameters(), {.lr = 1e-3}) {}

  ls::nn::Sequential model;
  ls::DistributedDataParallel ddp;
  ls::optim::SGD optimizer;
};

void run(int pairs, bool is_trace, std::int64_t width) {
  const auto group = ls::init_process_group();
  Training looks(width, group, ls::NotFinite::tell);
  Training ignores(width, group, ls::NotFinite::ignore);
  ls::Generator random(static_cast<std::uint64_t>(group->rank()) + 1);
  std::vector<float> values(static_cast<std::size_t>(kRows * 74));
  std::generate(values.begin(), values.end(), [&] { return random.normal(); });
  const auto x = ls::Tensor::of({kRows, 64}, std::span(values).first(kRows * 64));
  const auto y = ls::Tensor::of({kRows, 10}, std::span(values).last(kRows * 10));
  // Microseconds of a step.
  const auto block = [&](bool is_on) {
    if (is_trace) ls::trace::switch_trace(is_on);
    Training& it = is_trace || is_on ? looks : ignores;
    group->barrier().wait();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kBlock; ++i) {
      it.ddp.backward(ls::mse_loss(it.ddp(x), y));
      it.optimizer.step();
      it.optimizer.zero_grad();
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
      "{}, width {}, {} pairs of {} steps, {} ranks: a step takes {:.1f} us without, {:.1f} us with; with / without "
      "{:.4f} ({:.4f} to {:.4f})\n",
      is_trace ? "trace" : "look for NaN", width, pairs, kBlock, group->size(), quantile(without, 0.5),
      quantile(with, 0.5), quantile(ratios, 0.5), quantile(ratios, 0.25), quantile(ratios, 0.75));
}

}  // namespace

int main(int count, char** arguments) {
  const std::string what = count > 2 ? arguments[2] : "trace";
  if (what != "trace" && what != "nan") {
    fmt::print(stderr, "bench_trace [PAIRS] [trace|nan] [WIDTH]\n");
    return 2;
  }
  run(count > 1 ? std::max(1, std::atoi(arguments[1])) : 200, what == "trace",
      count > 3 ? std::max(1, std::atoi(arguments[3])) : 128);
}
