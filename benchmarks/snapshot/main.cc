// SPDX-License-Identifier: Apache-2.0
// What a snapshot in every 20th step costs the training, beside the same training without, and beside a memcpy of the
// state.
//
// In alternating blocks of 20 steps of one process per rank; times are medians over the blocks, of rank 0.
//
// bench_snapshot FOLDER [--shard] [--serve]: with --shard the optimizer's state is in shards, which all ranks write;
// "%r" in FOLDER is the rank, for disks of their own.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
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

// The training, of which a block of steps is measured.
class Training {
 public:
  Training(const std::string& folder, ls::Shard shard)
      : ddp_(*model_, group_, {.shard = shard}), snapshots_(own(folder), ddp_, {.keep = 1, .rescue = false}) {
    snapshots_.add("optimizer", optimizer_);
    snapshots_.restore();
    for (int i = 0; i < 3; ++i) step();
  }

  struct Block {
    double step = 0;   // seconds, the mean
    double pause = 0;  // of the call that saves
  };
  // With one snapshot behind the first step, or without.
  Block measure(bool saves) {
    Block block;
    group_->barrier().wait();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) {
      step();
      if (!saves || i > 0) continue;
      const auto before = std::chrono::steady_clock::now();
      snapshots_.save_behind("a block");
      block.pause = seconds_since(before);
    }
    block.step = seconds_since(begin) / kSteps;
    snapshots_.wait();
    return block;
  }
  std::size_t state_bytes() const { return static_cast<std::size_t>(3 * model_->parameter_count()) * sizeof(float); }
  ls::ProcessGroup& group() { return *group_; }

  // A step, and until its snapshot is durable, with nothing behind it.
  double seconds_to_save() {
    step();
    group_->barrier().wait();
    const auto begin = std::chrono::steady_clock::now();
    snapshots_.save("a measurement");
    return seconds_since(begin);
  }

 private:
  std::string own(std::string folder) const {
    if (const auto at = folder.find("%r"); at != folder.npos) folder.replace(at, 2, std::to_string(group_->rank()));
    return folder;
  }
  void step() {
    ddp_.backward(ls::mse_loss(ddp_(x_), x_));
    optimizer_.step();
    optimizer_.zero_grad();
  }

  std::shared_ptr<ls::ProcessGroup> group_ = ls::init_process_group();
  std::unique_ptr<ls::nn::Sequential> model_ = make_model();
  ls::DistributedDataParallel ddp_;
  ls::optim::AdamW optimizer_{ddp_.parameters(), {.lr = 1e-4}};
  ls::Snapshots snapshots_;
  const ls::Tensor x_ = ls::Tensor::full({kRows, kWidth}, 0.01f);
};

// For benchmarks/run_snapshot: a block for each line "with" or "without" on rank 0's stdin.
int serve(Training& training) {
  ls::ProcessGroup& group = training.group();
  for (std::string line;;) {
    if (group.rank() == 0 && !std::getline(std::cin, line)) line.clear();
    line = ls::broadcast_value(std::string_view(line), group);
    if (line.empty()) return 0;
    const Training::Block block = training.measure(line == "with");
    if (group.rank() != 0) continue;
    fmt::print("{} {}\n", block.step, block.pause);
    std::fflush(stdout);
  }
}

int compare(Training& training) {
  std::vector<double> without, with, pauses, saves;
  for (int i = 0; i < kBlocks; ++i) {
    without.push_back(training.measure(false).step);
    const Training::Block block = training.measure(true);
    with.push_back(block.step);
    pauses.push_back(block.pause);
    saves.push_back(training.seconds_to_save());
  }
  if (training.group().rank() != 0) return 0;
  const std::size_t state_bytes = training.state_bytes();
  const double copy = seconds_of_memcpy(state_bytes);
  fmt::print("{} ranks, state of {:.0f} MiB, steps of {:.1f} ms, one snapshot in {} steps, medians of {} blocks\n",
             training.group().size(), static_cast<double>(state_bytes) / (1 << 20), 1e3 * median(without), kSteps,
             kBlocks);
  fmt::print("step with / without: {:.3f}\n", median(with) / median(without));
  fmt::print("call with a snapshot: {:.2f} ms, {:.3f} of a memcpy of the state ({:.1f} ms)\n", 1e3 * median(pauses),
             median(pauses) / copy, 1e3 * copy);
  fmt::print("save(), until it is durable: {:.0f} ms\n", 1e3 * median(saves));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> flags(argv + std::min(argc, 2), argv + argc);
  const auto has = [&](std::string_view flag) { return std::ranges::count(flags, flag) > 0; };
  const bool serves = has("--serve"), shards = has("--shard");
  if (argc < 2 || flags.size() != std::size_t{serves} + std::size_t{shards}) {
    fmt::print(stderr,
               "usage: bench_snapshot FOLDER [--shard] [--serve]: a new folder, on the disk that is measured; %r in it "
               "is the rank\n");
    return 2;
  }
  Training training(argv[1], shards ? ls::Shard::optimizer : ls::Shard::none);
  return serves ? serve(training) : compare(training);
}
