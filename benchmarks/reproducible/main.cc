// SPDX-License-Identifier: Apache-2.0
// What the same bits at any number of ranks cost: steps of the char GPT of examples/02 in the fast mode and in fixed
// micro-batches, in alternating blocks of the same processes.
//
//   lockstep run -n 2 build/release/bin/bench_reproducible [--blocks N] [--steps N] [--batch N]
//
// Modes: fast; V, as many micro-batches as ranks; 2V; and 3V, where no rank's micro-batches are one node of the tree. A
// sample is a block's mean time of a step, of the slowest rank; times are medians, ratios are medians of each block's
// own.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "examples/02_char_gpt/gpt.h"
#include "examples/02_char_gpt/text.h"
#include "lockstep/comm/init/init_process_group.h"
#include "lockstep/data/sampler.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/distributed_data_parallel.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using char_gpt::Gpt;

struct Settings {
  int blocks = 15;
  int steps = 20;  // of a block
  std::int64_t batch = 16;
  std::string text = "/usr/share/common-licenses/GPL-3";
};

Gpt initialised(const char_gpt::GptOptions& options) {
  Gpt model(options);
  model.initialize(1);
  return model;
}

class Contender {
 public:
  Contender(const std::shared_ptr<ProcessGroup>& group, const char_gpt::GptOptions& model,
            const char_gpt::Windows& windows, const Settings& settings, int micro_batches)
      : micro_batches_(micro_batches),
        windows_(windows),
        model_(initialised(model)),
        ddp_(model_, group, {.reproducible = {.micro_batches = micro_batches, .global_batch = settings.batch}}),
        optimizer_(ddp_.parameters(), {.lr = 1e-3}),
        sampler_(windows.size(), *group, {.global_batch = settings.batch, .micro_batches = micro_batches}) {}

  // Seconds of a step.
  double run(int steps) {
    ddp_.group()->barrier().wait();
    const auto begin = Clock::now();
    for (int i = 0; i < steps; ++i) {
      const data::Batch batch = windows_.batch(sampler_.batch(next_++ % sampler_.num_batches()));
      ddp_.backward(batch, [&](const data::Batch& rows) { return cross_entropy(ddp_(rows.x, rows.ids), rows.y); });
      optim::clip_grad_norm(ddp_.parameters(), 1.0);
      optimizer_.step();
      optimizer_.zero_grad();
    }
    double seconds = std::chrono::duration<double>(Clock::now() - begin).count() / steps;
    ddp_.group()->all_reduce(BufferView(std::span(&seconds, 1)), {.op = ReduceOp::max}).wait();
    return seconds;
  }

  int micro_batches() const { return micro_batches_; }

 private:
  int micro_batches_;
  const char_gpt::Windows& windows_;
  Gpt model_;
  DistributedDataParallel ddp_;
  optim::AdamW optimizer_;
  data::GlobalBatchSampler sampler_;
  std::int64_t next_ = 0;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void measure(const Settings& settings) {
  const auto group = init_process_group();
  const std::string text = char_gpt::read_text(settings.text);
  const char_gpt::Vocabulary vocabulary(text);
  char_gpt::GptOptions model;
  model.vocabulary = vocabulary.size();
  const char_gpt::Windows windows(std::make_shared<const std::vector<std::int64_t>>(vocabulary.encode(text)),
                                  model.context, 1);
  std::vector<std::unique_ptr<Contender>> contenders;
  for (const int factor : {0, 1, 2, 3}) {
    contenders.push_back(std::make_unique<Contender>(group, model, windows, settings, factor * group->size()));
  }
  for (const auto& it : contenders) it->run(settings.steps);  // warm
  std::vector<std::vector<double>> seconds(contenders.size()), ratios(contenders.size());
  for (int block = 0; block < settings.blocks; ++block) {
    double fast = 0;
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const double each = contenders[i]->run(settings.steps);
      if (i == 0) fast = each;
      seconds[i].push_back(each);
      ratios[i].push_back(each / fast);
    }
  }
  if (group->rank() != 0) return;
  fmt::print("{} ranks, batch {}, {} blocks of {} steps\n{:<10} {:>10} {:>10}\n", group->size(), settings.batch,
             settings.blocks, settings.steps, "micro-batches", "ms a step", "of fast");
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    fmt::print("{:<10} {:>10.2f} {:>10.2f}\n", i == 0 ? "none" : std::to_string(contenders[i]->micro_batches()),
               1e3 * median(seconds[i]), median(ratios[i]));
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Settings settings;
  CLI::App app("What the same bits at any number of ranks cost", "bench_reproducible");
  app.add_option("--blocks", settings.blocks, "Blocks of each")->check(CLI::PositiveNumber);
  app.add_option("--steps", settings.steps, "Steps of a block")->check(CLI::PositiveNumber);
  app.add_option("--batch", settings.batch, "Sequences of a step")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    lockstep::measure(settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_reproducible: %s\n", error.what());
    return 1;
  }
  return 0;
}
