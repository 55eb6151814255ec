// SPDX-License-Identifier: Apache-2.0
// The well-known MNIST program for LibTorch, on any number of processes. plain.cc is this file without lockstep.
#include <lockstep/libtorch.h>
#include <torch/torch.h>

#include <cstdio>
#include <optional>

#include "examples/04_libtorch_mnist/dataset.h"
#include "examples/04_libtorch_mnist/flags.h"

using Snapshots = std::optional<lockstep::libtorch::Snapshots>;

struct Net : torch::nn::Module {
  torch::nn::Conv2d conv1 = register_module("conv1", torch::nn::Conv2d(1, 10, 5));
  torch::nn::Conv2d conv2 = register_module("conv2", torch::nn::Conv2d(10, 20, 5));
  torch::nn::Dropout2d conv2_drop = register_module("conv2_drop", torch::nn::Dropout2d(0.25));
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(320, 50));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(50, 10));

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1->forward(x), 2));
    x = torch::relu(torch::max_pool2d(conv2_drop->forward(conv2->forward(x)), 2));
    x = torch::relu(fc1->forward(x.view({-1, 320})));
    return torch::log_softmax(fc2->forward(x), 1);
  }
};

template <typename Model, typename DataLoader>
void train(int epoch, Model& model, DataLoader& loader, torch::optim::Optimizer& optimizer, Snapshots& snapshots) {
  model.train();
  double sum = 0;
  int batches = 0;
  for (auto& batch : loader) {
    optimizer.zero_grad();
    model.backward(batch.data.size(0), [&](int64_t begin, int64_t end) {  // all rows, or a fixed micro-batch's
      torch::Tensor output = model.forward(batch.data.slice(0, begin, end));
      return torch::nll_loss(output, batch.target.slice(0, begin, end));
    });
    optimizer.step();
    if (snapshots) snapshots->step();
    sum += model.last_loss().value();  // of all ranks
    ++batches;
  }
  if (model.group()->rank() == 0 && batches > 0) std::printf("epoch %d  training loss %.4f\n", epoch, sum / batches);
}

template <typename Model, typename DataLoader>
void test(Model& model, DataLoader& loader, lockstep::ProcessGroup& group) {
  torch::NoGradGuard no_grad;
  model.eval();
  double loss = 0;
  int64_t correct = 0;
  int64_t count = 0;
  for (auto& batch : loader) {
    torch::Tensor output = model.forward(batch.data);
    loss += torch::nll_loss(output, batch.target, {}, torch::Reduction::Sum).template item<double>();
    correct += output.argmax(1).eq(batch.target).sum().template item<int64_t>();
    count += batch.target.size(0);
  }
  lockstep::Metrics metrics(group);
  metrics.add("loss", loss, count);
  metrics.add("accuracy", correct, count);
  const lockstep::MetricResults all = metrics.result();
  if (group.rank() == 0) std::printf("test loss %.4f  accuracy %.3f\n", all.mean("loss"), all.mean("accuracy"));
}

int main(int argc, char** argv) {
  torch::manual_seed(1);
  const Flags flags(argc, argv);
  std::string folder = flags.folder;
  Net model;
  auto group = lockstep::init_process_group();
  lockstep::libtorch::DistributedDataParallel ddp(
      model, group, {.reproducible = {.micro_batches = flags.micro_batches, .global_batch = 64}, .seed = 1});

  auto train_set = Digits(folder, true)
                       .map(torch::data::transforms::Normalize<>(0.1307, 0.3081))
                       .map(torch::data::transforms::Stack<>());
  auto test_set = Digits(folder, false)
                      .map(torch::data::transforms::Normalize<>(0.1307, 0.3081))
                      .map(torch::data::transforms::Stack<>());
  lockstep::libtorch::DataLoader train_loader(std::move(train_set), *group,
                                              {.global_batch = 64, .micro_batches = flags.micro_batches});
  lockstep::libtorch::DataLoader test_loader(std::move(test_set), *group, {.global_batch = 1000, .shuffle = false});

  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  Snapshots snapshots;
  if (!flags.snapshot_dir.empty()) {
    snapshots.emplace(flags.snapshot_dir, ddp, lockstep::SnapshotOptions{.every = flags.snapshot_every});
    snapshots->add("optimizer", optimizer);
    snapshots->add("data", train_loader);
    snapshots->restore();
  }
  ddp.watch(train_loader);  // its passes end when the ranks have agreed to stop
  for (int epoch = 1 + int(train_loader.epoch()); epoch <= 3; ++epoch) {
    train_loader.set_epoch(epoch - 1);  // keeps the place in an epoch that a snapshot has begun
    train(epoch, ddp, train_loader, optimizer, snapshots);
    if (ddp.should_stop()) break;
    test(model, test_loader, *group);
  }
  if (snapshots && !ddp.should_stop()) snapshots->save("the last step");
  return ddp.exit_code();
}
