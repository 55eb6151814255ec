// SPDX-License-Identifier: Apache-2.0
// Options of how lockstep trains a torch::nn::Module in parallel.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/ddp/comm_hook.h"
#include "lockstep/ddp/loss.h"
#include "lockstep/ddp/not_finite.h"
#include "lockstep/ddp/reproducible.h"

namespace lockstep::libtorch {

// Settings of DistributedDataParallel, equal on all ranks. The first nine members are those of lockstep::DdpOptions,
// copied because designated initialisers can't reach into a base.
struct DdpOptions {
  // The sizes of the buckets.
  BucketOptions buckets = {};
  // How the loss combines its terms: Loss::sum for reduction='sum'. A number does not tell which it is, and the mean of
  // sums is wrong by a factor.
  Loss loss = Loss::mean;
  // Names, dotted, of parameters that get no gradient on any rank: no bucket waits for them. Unused parameters that are
  // not declared are found at the end of each backward.
  std::vector<std::string> unused = {};
  // Whether buckets leave during backward. False: at its end. Set false
  //
  // - if a backward reaches a parameter several times: activation checkpoints that share it, or a backward within a
  //   backward;
  // - if one backward goes through several modules of one group, and the ranks leave out different parameters of them.
  //
  // With a SyncBatchNorm of this group it counts as false.
  bool overlap = true;
  // The number of steps between two comparisons of a digest of the parameters over the ranks; 0: none. Default: 100 on
  // the CPU, 0 on a device, where the parameters are copied to the host. In every step the ranks also compare how often
  // their parameters were written (torch's Tensor::_version()), and if that differs, the parameters:
  // ddp/equality/divergence_check.h.
  std::optional<std::int64_t> compare_every = std::nullopt;
  // The exchange of gradients that replaces the group's all-reduce: ddp/comm_hook.h, and tensor_of() in
  // libtorch/comm_hook.h. Its name is the same on all ranks.
  CommHook comm_hook = {};
  // The reaction to NaN and infinity in this rank's own gradients, see ddp/not_finite.h. A single rank on a device does
  // not look.
  NotFinite not_finite = NotFinite::tell;
  // The settings for the same bits at any number of ranks: each step is then a backward(rows, loss_of), and generators
  // are seeded by fixed micro-batch, not by rank. The constructor sets torch's intra-op threads to `threads`. On a
  // device it also turns on, for the process, torch's deterministic algorithms (an operation that has none is torch's
  // error), and turns off cuDNN benchmarks.
  //
  // InvalidArgument with a SyncBatchNorm; on a device without CUBLAS_WORKSPACE_CONFIG=:4096:8 (or :16:8); and from a
  // backward whose forward wrote a buffer (running statistics), because a buffer depends on the order of the
  // micro-batches.
  Reproducible reproducible = {};
  // The state that ranks divide among themselves. With Shard::optimizer each rank keeps the optimizer's state of its
  // shard and updates only the shard's weights; it needs a ShardedOptimizer (libtorch/sharded_optimizer.h). With a
  // single rank it changes nothing. InvalidArgument with a comm_hook, and for a parameter whose elements are not
  // contiguous.
  Shard shard = Shard::none;

  // The seed of torch's default generators, those of the CPU and of the group's device. Each forward that trains seeds
  // them from (seed, steps(), number of earlier forwards of the step, rank). So dropout differs from rank to rank, and
  // a run that resumes after set_steps() draws the same numbers, without saved state; with another number of ranks the
  // noise differs. nullopt: the program seeds, and torch::manual_seed(1) gives every rank the same noise; with fixed
  // micro-batches the seed is then 0.
  std::optional<std::uint64_t> seed = std::nullopt;
  // The dimension of forward's first tensor that counts rows, which are the weight of this rank's gradients, unless
  // set_weight() sets it. 1 for an LSTM without batch_first.
  std::int64_t batch_dim = 0;
  // Whether all ranks get rank 0's buffers (running statistics) before every forward that trains and is synchronised.
  // Buffers of a SyncBatchNorm are equal on all ranks and are not broadcast.
  bool broadcast_buffers = true;
  // Whether the weight is multiplied into the gradient that enters the module's outputs, instead of into each
  // parameter's: a pass over the gradients less. Set it if the loss depends on the parameters only through the outputs
  // (no penalty on the parameters in the loss), and gradients come only from backward().
  bool weight_outputs = false;
};

// The number of terms that this rank's loss is the mean of, until the next forward. Layers that compute across ranks
// share it.
using LossWeight = std::shared_ptr<std::optional<std::int64_t>>;

// How a collective in the loss weights the gradients that come back through it; from
// DistributedDataParallel::gradient_options().
struct GradientOptions {
  // The weight of this rank's loss, read in backward. Null: the job's loss is the sum of the ranks' losses. With a
  // weight of 0 this rank gives no gradients, and backward throws InvalidArgument if other ranks' losses depend on
  // elements that it gave.
  LossWeight loss_weight = nullptr;
  // A function that runs before each collective of a backward. May be empty. DistributedDataParallel's plans its
  // buckets, which blocks, while no rank is in a collective that another rank has not reached.
  std::function<void()> before_backward = {};
};

}  // namespace lockstep::libtorch
