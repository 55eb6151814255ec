// SPDX-License-Identifier: Apache-2.0
// lockstep run -n 2 bench_audits [ROUNDS]: the time of a step with an audit in every 10th and every 100th step, as a
// ratio to the same step without audits, for as many fixed micro-batches as ranks and for four times as many. Each
// round trains 100 steps of each in turn; the ratios are medians over the rounds.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "lockstep/libtorch/data_loader.h"
#include "lockstep/libtorch/distributed_data_parallel.h"
#include "lockstep/lockstep.h"

namespace ls = lockstep;
namespace nn = torch::nn;

constexpr std::int64_t kRowsOfRank = 64;
constexpr std::int64_t kSteps = 100;  // of an epoch

struct Rows : torch::data::datasets::BatchDataset<Rows, torch::data::Example<>> {
  explicit Rows(std::int64_t rows) : x(torch::randn({rows, 256})), y(torch::randint(10, {rows})) {}
  torch::data::Example<> get_batch(torch::ArrayRef<std::size_t> ids) override {
    const at::Tensor chosen = torch::tensor(std::vector<std::int64_t>(ids.begin(), ids.end()));
    return {x.index_select(0, chosen), y.index_select(0, chosen)};
  }
  torch::optional<std::size_t> size() const override { return x.size(0); }
  at::Tensor x, y;
};

struct Run {
  Run(const Rows& rows, const std::shared_ptr<ls::ProcessGroup>& group, int micro_batches, int audit_every)
      : net(nn::Linear(256, 1024), nn::ReLU(), nn::Linear(1024, 1024), nn::ReLU(), nn::Linear(1024, 10)),
        ddp(net, group,
            {.reproducible = {.micro_batches = micro_batches, .global_batch = kRowsOfRank * group->size()}}),
        optimizer(ddp.parameters(), 0.01),
        loader(
            rows, *group,
            {.global_batch = kRowsOfRank * group->size(), .micro_batches = micro_batches, .audit_every = audit_every}) {
    ddp.watch(loader);
  }
  double seconds() {
    const auto began = std::chrono::steady_clock::now();
    for (auto& batch : loader) {
      optimizer.zero_grad();
      ddp.backward(batch.data.size(0), [&](std::int64_t begin, std::int64_t end) {
        return torch::cross_entropy_loss(ddp(batch.data.slice(0, begin, end)), batch.target.slice(0, begin, end));
      });
      optimizer.step();
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }
  nn::Sequential net;
  ls::libtorch::DistributedDataParallel<nn::SequentialImpl> ddp;
  torch::optim::SGD optimizer;
  ls::libtorch::DataLoader<Rows> loader;
};

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  auto group = ls::init_process_group();
  torch::manual_seed(1);  // all ranks have the same rows
  const Rows rows(kSteps * kRowsOfRank * group->size());
  for (const int times : {1, 4}) {
    std::vector<std::unique_ptr<Run>> runs;
    for (const int every : {0, 100, 10})
      runs.push_back(std::make_unique<Run>(rows, group, times * group->size(), every));
    std::vector<double> plain, seldom, often;
    for (int round = -1; round < rounds; ++round) {
      const double base = runs[0]->seconds(), hundred = runs[1]->seconds(), ten = runs[2]->seconds();
      if (round < 0) continue;  // warms up
      plain.push_back(base / kSteps);
      seldom.push_back(hundred / base);
      often.push_back(ten / base);
    }
    const auto median = [](std::vector<double>& all) {
      std::ranges::sort(all);
      return all[all.size() / 2];
    };
    if (group->rank() == 0) {
      std::printf("%d ranks, %d fixed micro-batches: %.3f ms a step; every 100th audited %.3f, every 10th %.3f\n",
                  group->size(), times * group->size(), 1e3 * median(plain), median(seldom), median(often));
    }
  }
  return 0;
}
