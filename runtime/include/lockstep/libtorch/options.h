// SPDX-License-Identifier: Apache-2.0
// Options for training a torch::nn::Module in parallel.
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

// DdpOptions are the settings of DistributedDataParallel, equal on all ranks. The first nine members are copies of the
// members of lockstep::DdpOptions, because designated initialisers can't reach into a base class.
struct DdpOptions {
  // The sizes of the buckets.
  BucketOptions buckets = {};
  // The way in which the loss combines its terms: Loss::sum for reduction='sum'. lockstep can't see from the loss
  // whether it is a sum or a mean, and a wrong setting makes gradients wrong by a factor.
  Loss loss = Loss::mean;
  // The dotted names of parameters that get no gradient on any rank. No bucket waits for declared parameters;
  // undeclared unused parameters are found at the end of each backward.
  std::vector<std::string> unused = {};
  // Whether buckets are sent during backward. If false, buckets are sent at the end of backward. Set overlap to false
  //
  // - if a backward reaches a parameter several times: activation checkpoints that share the parameter, or a backward
  //   within a backward;
  // - if one backward goes through several modules of one group, and the ranks leave out different parameters of them.
  //
  // With a SyncBatchNorm of this group overlap counts as false.
  bool overlap = true;
  // The number of steps between two comparisons of a digest of the parameters over the ranks; 0 disables the
  // comparison. The default is 100 on the CPU, and 0 on a device, where a comparison copies the parameters to the host.
  // In every step the ranks also compare how often their parameters were written (torch's Tensor::_version()). If these
  // counts differ, the ranks compare the parameters: ddp/equality/divergence_check.h.
  std::optional<std::int64_t> compare_every = std::nullopt;
  // The exchange of gradients that replaces the group's all-reduce: see ddp/comm_hook.h, and tensor_of() in
  // libtorch/comm_hook.h. The hook's name is equal on all ranks.
  CommHook comm_hook = {};
  // The reaction to NaN and infinity in this rank's own gradients, see ddp/not_finite.h. A single rank on a device does
  // not look for NaN and infinity.
  NotFinite not_finite = NotFinite::tell;
  // The settings that give the same bits at any number of ranks. With these settings each step is a backward(rows,
  // loss_of), and generators are seeded by fixed micro-batch, not by rank. The constructor sets torch's intra-op
  // threads to `threads`. On a device the constructor also turns on torch's deterministic algorithms for the process,
  // and turns off cuDNN benchmarks. torch then throws for an operation that has no deterministic algorithm.
  //
  // Throws InvalidArgument with a SyncBatchNorm; on a device without CUBLAS_WORKSPACE_CONFIG=:4096:8 (or :16:8);
  // and from a backward whose forward wrote a buffer (running statistics), because a buffer depends on the order of
  // the micro-batches.
  Reproducible reproducible = {};
  // The state that ranks divide among themselves. With Shard::optimizer each rank keeps the optimizer's state of its
  // shard and updates only the shard's weights. Shard::optimizer needs a ShardedOptimizer
  // (libtorch/sharded_optimizer.h), and changes nothing with a single rank. Throws InvalidArgument with a comm_hook,
  // and for a parameter whose elements are not contiguous.
  Shard shard = Shard::none;

  // The seed of torch's default generators of the CPU and of the group's device. Each forward that trains seeds these
  // generators from (seed, steps(), number of earlier forwards of the step, rank). So dropout differs from rank to
  // rank, and a run that resumes after set_steps() draws the same numbers, without saved state. With another number of
  // ranks the noise differs. With nullopt the program seeds the generators, and torch::manual_seed(1) gives every rank
  // the same noise; with fixed micro-batches nullopt means seed 0.
  std::optional<std::uint64_t> seed = std::nullopt;
  // The dimension of forward's first tensor that counts rows. The number of rows is the weight of this rank's
  // gradients, unless set_weight() sets the weight. An LSTM without batch_first needs 1.
  std::int64_t batch_dim = 0;
  // Whether all ranks get rank 0's buffers (running statistics) before every forward that trains and is synchronised.
  // Buffers of a SyncBatchNorm are equal on all ranks and are not broadcast.
  bool broadcast_buffers = true;
  // Whether the weight is multiplied into the gradient that enters the module's outputs, instead of into each
  // parameter's gradient, which saves a pass over the gradients. Set weight_outputs if the loss depends on the
  // parameters only through the outputs (no penalty on the parameters in the loss), and gradients come only
  // from backward().
  bool weight_outputs = false;
};

// The number of terms that this rank's loss is the mean of, until the next forward. Layers that compute across ranks
// share the number.
using LossWeight = std::shared_ptr<std::optional<std::int64_t>>;

// GradientOptions say how a collective in the loss weights the gradients that come back through the collective.
// DistributedDataParallel::gradient_options() returns GradientOptions.
struct GradientOptions {
  // The weight of this rank's loss, read in backward. If null, the job's loss is the sum of the ranks' losses. A rank
  // with weight 0 gives no gradients, and its backward throws InvalidArgument if other ranks' losses depend on elements
  // that this rank gave.
  LossWeight loss_weight = nullptr;
  // The function that runs before each collective of a backward; may be empty. DistributedDataParallel's function plans
  // its buckets, which blocks, while no rank is in a collective that another rank has not reached.
  std::function<void()> before_backward = {};
};

}  // namespace lockstep::libtorch
