// SPDX-License-Identifier: Apache-2.0
// A small program that trains with snapshots, for tests to stop, to disturb and to start again.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/tensor/batch.h"
#include "lockstep/nn/nn.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/train/distributed_data_parallel.h"
#include "lockstep/train/snapshots.h"
#include "tests/multirank/compare.h"
#include "tests/support/rank_threads.h"
#include "tests/support/snapshots_in.h"

namespace lockstep::testing {

namespace fs = std::filesystem;
using Group = std::shared_ptr<ProcessGroup>;

inline constexpr std::int64_t kSamples = 50, kBatch = 12, kSteps = 14;  // five batches in an epoch
inline constexpr const char* kStep4 = "step-000000000004-g000001";
inline constexpr const char* kStep8 = "step-000000000008-g000001";

inline data::TensorDataset dataset() {
  const Tensor x = Tensor::empty({kSamples, 5});
  const Tensor y = Tensor::empty({kSamples, 2});
  Generator generator(1);
  for (float& value : x.values<float>()) value = generator.normal();
  for (float& value : y.values<float>()) value = generator.normal();
  return data::TensorDataset(x, y);
}

// One rank of a program that trains with dropout, AdamW, a schedule and clipped gradients, and snapshots of all of it;
// in fixed micro-batches where `fixed` says so.
struct Program {
  Program(const Group& the_group, const fs::path& folder, const SnapshotOptions& options, Shard shard = Shard::none,
          const Reproducible& fixed = {})
      : group(the_group),
        ddp(model, group, {.reproducible = fixed, .shard = shard}),
        loader(dataset(),
               data::GlobalBatchSampler(
                   kSamples, *group,
                   {.global_batch = fixed.is_on() ? fixed.global_batch : kBatch, .micro_batches = fixed.micro_batches}),
               {.workers = 1}),
        snapshots(folder, ddp, options) {
    snapshots.add("optimizer", optimizer);
    snapshots.add("data", loader);
    snapshots.add("samples", samples);
  }

  // Until `stop` steps are done; nothing is saved of the way out.
  void train(std::int64_t stop) {
    for (std::int64_t epoch = loader.epoch(); ddp.steps() < stop; ++epoch) {
      loader.set_epoch(epoch);
      for (const data::Batch& batch : loader) {
        optimizer.set_learning_rate(schedule(ddp.steps()));
        ddp.backward(batch.to(group->device()),
                     [&](const data::Batch& part) { return mse_loss(ddp(part.x, part.ids), part.y); });
        optim::clip_grad_norm(ddp.parameters(), 0.5);
        optimizer.step();
        optimizer.zero_grad();
        samples += ddp.last_weight();
        read.insert(read.end(), batch.ids.begin(), batch.ids.end());
        snapshots.step();
        if (waits) snapshots.wait();
        if (behind_step) behind_step(ddp.steps());
        if (ddp.steps() == stop) return;
      }
    }
  }
  static nn::Sequential make_model(std::uint64_t seed, DeviceId device = {}) {
    nn::Sequential model{nn::Linear(5, 16), nn::Tanh(), nn::Dropout(0.3f), nn::Linear(16, 2)};
    model.initialize(seed);
    model.to(device);
    return model;
  }

  Group group;
  nn::Sequential model = make_model(7 + static_cast<std::uint64_t>(group->rank()), group->device());
  DistributedDataParallel ddp;
  optim::AdamW optimizer{ddp.parameters(), {.lr = 0.01, .weight_decay = 0.1}};
  optim::Schedule schedule{.peak = 0.02, .warmup = 3, .total = kSteps};
  data::DataLoader<data::Batch> loader;
  std::int64_t samples = 0;
  std::vector<std::int64_t> read;  // by this rank, in this run
  bool waits = true;               // for each snapshot, so that none is left out
  std::function<void(std::int64_t step)> behind_step = nullptr;
  Snapshots snapshots;
  std::optional<RestoredSnapshot> restored = std::nullopt;
};

struct Outcome {
  std::optional<std::int64_t> restored;  // from which step
  Values weights;                        // of rank 0
  std::int64_t samples = 0;
};

// Runs `body` on each rank of a program that has resumed in its folder of `disks`.
inline void run_programs(const std::vector<fs::path>& disks, const std::function<void(Program&)>& body,
                         const SnapshotOptions& options = {.every = 4}, Shard shard = Shard::none,
                         const RankThreadsOptions& threads = {}) {
  run_ranks(
      static_cast<int>(disks.size()),
      [&](const Group& group) {
        Program it(group, disks[static_cast<std::size_t>(group->rank())], options, shard);
        it.restored = it.snapshots.restore();
        body(it);
      },
      threads);
}

// Goes on to `stop` steps, each rank in a folder of its own, as if each had a disk of its own.
inline Outcome run_on(const std::vector<fs::path>& disks, std::int64_t stop,
                      const SnapshotOptions& options = {.every = 4}, Shard shard = Shard::none) {
  Outcome outcome;
  run_programs(
      disks,
      [&](Program& it) {
        it.train(stop);
        EXPECT_NO_THROW(it.ddp.check_replicas());
        if (it.group->rank() != 0) return;
        if (it.restored) outcome.restored = it.restored->step;
        outcome.weights = weights_of(it.model);
        outcome.samples = it.samples;
      },
      options, shard);
  return outcome;
}

// The same in one folder.
inline Outcome run(int ranks, const fs::path& folder, std::int64_t stop, const SnapshotOptions& options = {.every = 4},
                   Shard shard = Shard::none) {
  return run_on(std::vector(static_cast<std::size_t>(ranks), folder), stop, options, shard);
}

// Rank `dead` leaves after `at_step`, as a rank that dies does for the others; they unwind, or catch the error and end.
inline void run_until_lost(const std::vector<fs::path>& disks, int dead, std::int64_t at_step,
                           const SnapshotOptions& options = {.every = 4}, Shard shard = Shard::none,
                           bool catches = false) {
  EXPECT_ANY_THROW(run_ranks(static_cast<int>(disks.size()), [&](const Group& group) {
    SnapshotOptions own = options;
    own.rescue = options.rescue && group->rank() != dead;  // a dead rank saves nothing
    Program it(group, disks[static_cast<std::size_t>(group->rank())], own, shard);
    it.snapshots.restore();
    it.train(at_step);
    group->barrier().wait();  // all have finished that step
    if (group->rank() == dead) throw std::runtime_error("this rank dies");
    if (!catches) return it.train(at_step + 5);
    EXPECT_THROW(it.train(at_step + 5), PeerLost);
  }));
}

inline std::vector<fs::path> disks_in(const fs::path& folder, int ranks) {
  std::vector<fs::path> disks;
  for (int rank = 0; rank < ranks; ++rank) disks.push_back(folder / std::to_string(rank));
  return disks;
}

// Flips a bit in the middle of a file.
inline void damage(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(fs::file_size(path) / 2);
  file.seekg(middle);
  const int was = file.get();
  file.seekp(middle);
  file.put(static_cast<char>(was ^ 4));
}

}  // namespace lockstep::testing
