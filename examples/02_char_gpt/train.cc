// SPDX-License-Identifier: Apache-2.0
#include "examples/02_char_gpt/train.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <lockstep/autograd/graph.h>
#include <lockstep/base/random.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/metrics/metrics.h>
#include <lockstep/optim/optimizer.h>
#include <lockstep/optim/schedule.h>
#include <lockstep/train/snapshots.h>

namespace char_gpt {

using lockstep::Tensor;
namespace ls = lockstep;

namespace {

// The mean loss over logits [B, T, V] and targets [B, T].
Tensor loss_of(const Tensor& logits, const Tensor& targets) { return ls::cross_entropy(logits, targets); }

class EvaluationMode {
 public:
  explicit EvaluationMode(Gpt& model) : model_(model), before_(model.is_training()) { model.eval(); }
  ~EvaluationMode() { model_.train(before_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  Gpt& model_;
  bool before_;
  ls::NoGrad no_grad_;
};

}  // namespace

ls::DdpOptions ddp_options(const TrainOptions& options) {
  return {.reproducible = {.micro_batches = options.micro_batches, .global_batch = options.batch},
          .shard = options.shard ? ls::Shard::optimizer : ls::Shard::none,
          .seed = options.seed};
}

void train(ls::DistributedDataParallel& ddp, const Windows& windows, const TrainOptions& options,
           const AfterStep& after_step, const BeforeSteps& before_steps) {
  const ls::ProcessGroup& group = *ddp.group();
  // The global batch is split, not multiplied: a step computes the same however many ranks share it.
  ls::data::DataLoader loader(
      windows,
      ls::data::GlobalBatchSampler(
          windows.size(), group,
          {.global_batch = options.batch, .seed = options.seed, .micro_batches = options.micro_batches}),
      {.workers = options.workers});
  ls::optim::AdamW optimizer(ls::optim::decay_groups(ddp.parameters(), options.weight_decay), {.beta2 = 0.99});
  const ls::optim::Schedule schedule{.peak = options.learning_rate,
                                     .floor = options.learning_rate / 10,
                                     .warmup = options.warmup,
                                     .total = options.steps};
  std::optional<ls::Snapshots> snapshots;
  if (!options.snapshot_dir.empty()) {
    snapshots.emplace(options.snapshot_dir, ddp, ls::SnapshotOptions{.every = options.snapshot_every});
    snapshots->add("optimizer", optimizer);
    snapshots->add("data", loader);
    snapshots->restore();
  }
  if (before_steps) before_steps(ddp.steps());
  ddp.watch(loader);  // its passes end when the ranks have agreed to stop
  for (std::int64_t epoch = loader.epoch(); ddp.steps() < options.steps && !ddp.should_stop(); ++epoch) {
    loader.set_epoch(epoch);  // keeps the place in an epoch that a snapshot has begun
    for (const ls::data::Batch& read : loader) {
      const ls::data::Batch batch = read.to(group.device());
      const std::int64_t step = ddp.steps();
      optimizer.set_learning_rate(schedule(step));
      ddp.backward(batch, [&](const ls::data::Batch& rows) { return loss_of(ddp(rows.x, rows.ids), rows.y); });
      ls::optim::clip_grad_norm(ddp.parameters(), options.clip);
      optimizer.step();
      if (after_step) after_step(step, ddp);
      optimizer.zero_grad();
      if (snapshots) snapshots->step();
      if (ddp.steps() == options.steps) break;
    }
  }
  if (snapshots && !ddp.should_stop()) snapshots->save("the last step");
}

double evaluate(Gpt& model, const Windows& windows, ls::ProcessGroup& group) {
  constexpr std::int64_t kBatch = 16;
  const EvaluationMode evaluating(model);
  const ls::data::RowRange mine = ls::data::chunk(windows.size(), group.rank(), group.size());
  double sum = 0;
  for (std::int64_t done = 0; done < mine.count; done += kBatch) {
    std::vector<std::int64_t> ids;
    for (std::int64_t i = done; i < std::min(done + kBatch, mine.count); ++i) ids.push_back(mine.begin + i);
    const ls::data::Batch batch = windows.batch(ids).to(group.device());
    sum += loss_of(model(batch.x), batch.y).item() * static_cast<double>(ids.size());
  }
  ls::Metrics metrics(group);
  metrics.add("loss", sum, mine.count);
  return metrics.result("loss");
}

std::string generate(Gpt& model, const Vocabulary& vocabulary, const std::string& prompt, std::int64_t count,
                     double temperature, std::uint64_t seed) {
  const EvaluationMode evaluating(model);
  ls::Generator random(seed);
  std::vector<std::int64_t> tokens = vocabulary.encode(prompt);
  std::string text = prompt;
  for (std::int64_t made = 0; made < count; ++made) {
    const auto length = std::min(static_cast<std::int64_t>(tokens.size()), model.options().context);
    const std::span<const std::int64_t> tail(tokens.end() - length, tokens.end());
    const ls::DeviceId device = model.parameters().front().device();
    const Tensor logits = model(Tensor::of({1, length}, tail).to(device)).to(ls::DeviceId{});
    const auto row = logits.values<float>().last(static_cast<std::size_t>(vocabulary.size()));
    // softmax(row / temperature) without the unknown, and the first token whose cumulated probability passes a draw.
    double largest = -std::numeric_limits<double>::infinity();
    for (std::size_t i = 1; i < row.size(); ++i) largest = std::max<double>(largest, row[i]);
    std::vector<double> cumulated(row.size());
    for (std::size_t i = 1; i < row.size(); ++i) {
      cumulated[i] = cumulated[i - 1] + std::exp((row[i] - largest) / temperature);
    }
    const double draw = random.uniform() * cumulated.back();
    const auto found = std::upper_bound(cumulated.begin() + 1, cumulated.end(), draw);
    const std::int64_t next = std::min<std::int64_t>(found - cumulated.begin(), vocabulary.size() - 1);
    tokens.push_back(next);
    text.push_back(vocabulary.decode(next));
  }
  return text;
}

}  // namespace char_gpt
