// SPDX-License-Identifier: Apache-2.0
// audited FOLDER STEPS: trains a small network with audits, snapshots in FOLDER/run and, at the end, weights in
// FOLDER/weights.pt, by rank 0. With LIES_FROM=n this process has a processor that computes wrong gradients from step n
// on: a bit of each is another.
#include <torch/torch.h>

#include <cstdlib>
#include <string>

#include "lockstep/libtorch/data_loader.h"
#include "lockstep/libtorch/distributed_data_parallel.h"
#include "lockstep/libtorch/snapshots.h"
#include "lockstep/lockstep.h"

namespace ls = lockstep;

struct Numbers : torch::data::datasets::BatchDataset<Numbers, torch::data::Example<>> {
  torch::data::Example<> get_batch(torch::ArrayRef<std::size_t> ids) override {
    std::vector<float> x;
    for (const std::size_t id : ids) {
      for (std::size_t i = 0; i < 8; ++i) x.push_back(static_cast<float>((id * 37 + i * 11) % 101) / 101);
    }
    const at::Tensor rows = torch::tensor(x).reshape({-1, 8});
    return {rows, rows.sin().sum(1, true)};
  }
  torch::optional<std::size_t> size() const override { return 240; }
};

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string folder = argv[1];
  const std::int64_t steps = std::stoll(argv[2]);
  const char* const lies = std::getenv("LIES_FROM");
  const std::int64_t lies_from = lies == nullptr ? steps : std::stoll(lies);
  auto group = ls::init_process_group();
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Dropout(0.1),
                              torch::nn::Linear(16, 1));
  bool is_lying = false;
  model->parameters()[0].register_hook(
      [&](const at::Tensor& gradient) { return is_lying ? gradient * 1.5 : gradient; });
  ls::libtorch::DistributedDataParallel ddp(model, group, {.reproducible = {.micro_batches = 6, .global_batch = 24}});
  torch::optim::Adam optimizer(ddp.parameters(), 0.01);
  ls::libtorch::DataLoader loader(Numbers(), *group, {.global_batch = 24, .micro_batches = 6, .audit_every = 4});
  ddp.watch(loader);
  ls::libtorch::Snapshots snapshots(folder + "/run", ddp, {.every = 3, .keep = 1});
  snapshots.add("optimizer", optimizer);
  snapshots.add("loader", loader);
  snapshots.restore();
  for (std::int64_t epoch = loader.epoch(); ddp.steps() < steps; ++epoch) {
    loader.set_epoch(epoch);
    for (auto& batch : loader) {
      if (ddp.steps() >= steps) break;
      is_lying = ddp.steps() >= lies_from;
      optimizer.zero_grad();
      ddp.backward(batch.data.size(0), [&](std::int64_t begin, std::int64_t end) {
        return torch::mse_loss(ddp(batch.data.slice(0, begin, end)), batch.target.slice(0, begin, end));
      });
      optimizer.step();
      snapshots.step();
      snapshots.wait();  // else one may be left out
    }
  }
  snapshots.wait();
  if (group->rank() == 0) torch::save(model, folder + "/weights.pt");
  return 0;
}
