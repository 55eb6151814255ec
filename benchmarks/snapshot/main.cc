// SPDX-License-Identifier: Apache-2.0
// What a snapshot in every 20th step costs the training, beside the same training without, and beside a memcpy of the
// state.
//
// In alternating blocks of 20 steps of one process per rank; times are medians over the blocks, of rank 0.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "lockstep/lockstep.h"

namespace {

namespace ls = lockstep;

constexpr std::int64_t kWidth = 1024, kRows = 512;
constexpr int kLayers = 6, kBlocks = 7, kSteps = 20;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::unique_ptr<ls::nn::Sequential> make_model() {
  auto model = std::make_unique<ls::nn::Sequential>();
  for (int i = 0; i < kLayers; ++i) {
    model->append(ls::nn::Linear(kWidth, kWidth));
    model->append(ls::nn::Tanh());
  }
  return model;
}

// To memory that is there.
double seconds_of_memcpy(std::size_t bytes) {
  const std::vector<std::byte> from(bytes, std::byte{1});
  std::vector<std::byte> to(bytes, std::byte{2});
  std::vector<double> times;
  for (int i = 0; i < kBlocks; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    std::memcpy(to.data(), from.data(), bytes);
    times.push_back(seconds_since(begin));
  }
  return to[bytes / 2] == std::byte{1} ? median(times) : 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: bench_snapshot FOLDER: a new one, on the disk that is measured\n");
    return 2;
  }
  auto group = ls::init_process_group();
  const auto model = make_model();
  ls::DistributedDataParallel ddp(*model, group);
  ls::optim::AdamW optimizer(ddp.parameters(), {.lr = 1e-4});
  ls::Snapshots snapshots(argv[1], ddp, {.keep = 1, .rescue = false});
  snapshots.add("optimizer", optimizer);
  snapshots.restore();
  const ls::Tensor x = ls::Tensor::full({kRows, kWidth}, 0.01f);
  const auto step = [&] {
    ddp.backward(ls::mse_loss(ddp(x), x));
    optimizer.step();
    optimizer.zero_grad();
  };
  for (int i = 0; i < 3; ++i) step();
  std::vector<double> without, with, pauses;
  for (int block = 0; block < kBlocks; ++block) {
    group->barrier().wait();
    auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) step();
    without.push_back(seconds_since(begin) / kSteps);
    group->barrier().wait();
    begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) {
      step();
      if (i > 0) continue;
      const auto before = std::chrono::steady_clock::now();
      snapshots.save_behind("a block");
      pauses.push_back(seconds_since(before));
    }
    with.push_back(seconds_since(begin) / kSteps);
    snapshots.wait();
  }
  if (group->rank() != 0) return 0;
  const auto state_bytes = static_cast<std::size_t>(3 * model->parameter_count()) * sizeof(float);
  const double copy = seconds_of_memcpy(state_bytes);
  fmt::print("{} ranks, state of {:.0f} MiB, steps of {:.1f} ms, one snapshot in {} steps, medians of {} blocks\n",
             group->size(), static_cast<double>(state_bytes) / (1 << 20), 1e3 * median(without), kSteps, kBlocks);
  fmt::print("step with / without: {:.3f}\n", median(with) / median(without));
  fmt::print("call with a snapshot: {:.2f} ms, {:.3f} of a memcpy of the state ({:.1f} ms)\n", 1e3 * median(pauses),
             median(pauses) / copy, 1e3 * copy);
  return 0;
}
