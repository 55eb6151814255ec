// SPDX-License-Identifier: Apache-2.0
// soak_train BACKEND [caught]: a rank that trains for ever, to be killed by job_test.cc.
//
// Says "training" after its first step. SOAK_IGNORES_TERM=1: the launcher's SIGTERM doesn't end it, so that it has to
// hear of the death from the library. caught: main catches what is thrown, prints it and returns 1, as many programs
// do.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <vector>

#include "lockstep/lockstep.h"

namespace ls = lockstep;

namespace {

void train(const char* backend) {
  auto group = ls::init_process_group({.backend = backend});
  std::vector<float> x;
  std::vector<float> y;
  for (ls::Generator random(1); y.size() < 512; y.push_back(x.end()[-2] * x.end()[-1])) {
    x.insert(x.end(), {random.normal(), random.normal()});
  }
  const ls::data::TensorDataset dataset(ls::Tensor::of({512, 2}, x), ls::Tensor::of({512, 1}, y));
  ls::nn::Sequential model{ls::nn::Linear(2, 64), ls::nn::ReLU(), ls::nn::Linear(64, 1)};
  ls::DistributedDataParallel ddp(model, group);
  ls::optim::AdamW optimizer(ddp.parameters(), {.lr = 1e-2});
  ls::data::DataLoader loader(dataset, ls::data::GlobalBatchSampler(512, *group, {.global_batch = 32}));
  bool told = false;
  for (int epoch = 0;; ++epoch) {
    loader.set_epoch(epoch);
    for (const auto& [input, target, ids] : loader) {
      ddp.backward(ls::mse_loss(ddp(input), target));
      optimizer.step();
      optimizer.zero_grad();
      if (told) continue;
      told = true;
      std::printf("training\n");
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (std::getenv("SOAK_IGNORES_TERM") != nullptr) std::signal(SIGTERM, SIG_IGN);
  const char* const backend = count > 1 ? arguments[1] : "auto";
  if (count < 3 || std::string_view(arguments[2]) != "caught") {
    train(backend);
    return 0;
  }
  try {
    train(backend);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "main caught: %s\n", error.what());
    return 1;
  }
  return 0;
}
