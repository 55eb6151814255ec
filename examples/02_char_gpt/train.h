// SPDX-License-Identifier: Apache-2.0
// Training and measuring, apart from flags and files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <lockstep/train/distributed_data_parallel.h>
#include "examples/02_char_gpt/gpt.h"
#include "examples/02_char_gpt/text.h"

namespace char_gpt {

struct TrainOptions {
  std::int64_t steps = 500;
  std::int64_t batch = 16;  // sequences in a step, of all ranks together
  std::uint64_t seed = 1;
  double learning_rate = 3e-3;        // at the end of the warm-up; a tenth of it at the last step
  std::int64_t warmup = 20;           // steps
  double weight_decay = 0.1;          // of matrices
  double clip = 1.0;                  // largest norm of all gradients together
  int workers = 1;                    // loader threads
  bool shard = false;                 // each rank has the optimizer's state of its shard alone
  int micro_batches = 0;              // of a step, which then has the same bits at any number of ranks; 0: none
  std::string snapshot_dir = {};      // where the run goes on from, and saves to; empty: neither
  std::int64_t snapshot_every = 100;  // steps
};

// What the DistributedDataParallel under train() is to be made with.
lockstep::DdpOptions ddp_options(const TrainOptions& options);

// Called once, with the steps that were done before: 0, or those of the snapshot that the run goes on from.
using BeforeSteps = std::function<void(std::int64_t steps)>;
// Called after each step, before gradients are dropped.
using AfterStep = std::function<void(std::int64_t step, lockstep::DistributedDataParallel& ddp)>;

// Trains the model under `ddp` on windows of the training text, epoch after epoch, in an order that depends on the seed
// alone, until it has `steps` steps, those of the snapshot that it goes on from among them. Collective. The model is in
// training mode afterwards.
void train(lockstep::DistributedDataParallel& ddp, const Windows& windows, const TrainOptions& options,
           const AfterStep& after_step, const BeforeSteps& before_steps = {});

// The mean loss over all targets of all windows, each rank measuring its rows. Collective; equal on all ranks.
double evaluate(Gpt& model, const Windows& windows, lockstep::ProcessGroup& group);

// `count` characters after the prompt, drawn with the model's probabilities (sharpened by a temperature below 1).
std::string generate(Gpt& model, const Vocabulary& vocabulary, const std::string& prompt, std::int64_t count,
                     double temperature, std::uint64_t seed);

}  // namespace char_gpt
