// SPDX-License-Identifier: Apache-2.0
// Defines the options for training a torch::nn::Module in parallel.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
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

// BufferRule says how the values that fixed micro-batches leave in a buffer become the buffer's value after the step.
// Only micro-batches with rows count, in their order. `sum` adds the micro-batches' differences from the value before
// the step, and `mean` adds the mean of these differences, weighted by rows. `min` and `max` work per element.
enum class BufferRule : std::uint8_t { first, sum, mean, min, max };

// DdpOptions holds the settings of DistributedDataParallel, which must be equal on all ranks. The first nine members
// are copies of the members of lockstep::DdpOptions, because designated initialisers can't reach into a base class.
struct DdpOptions {
  // The sizes of the buckets.
  BucketOptions buckets = {};
  // The way in which the loss combines its terms; use Loss::sum for a loss with reduction='sum'.
  // DistributedDataParallel can't see whether a loss is a sum or a mean, and a wrong setting makes gradients wrong by
  // a factor.
  Loss loss = Loss::mean;
  // The dotted names of parameters that get no gradient on any rank. No bucket waits for the parameters in `unused`.
  // At the end of each backward, DistributedDataParallel finds the unused parameters that `unused` does not name.
  std::vector<std::string> unused = {};
  // If true, buckets are sent during backward; if false, buckets are sent at the end of backward. If the module has a
  // SyncBatchNorm of this group, `overlap` counts as false.
  //
  // Set `overlap` to false if a backward reaches a parameter several times, as happens if activation checkpoints share
  // the parameter, or if one backward runs within another backward. Also set `overlap` to false if one backward goes
  // through several modules of one group, and the ranks leave out different parameters of these modules.
  bool overlap = true;
  // The number of steps between two comparisons of a digest of the parameters over the ranks; 0 disables the
  // comparison. The default is 100 on the CPU, and 0 on a device, where a comparison copies the parameters to the host.
  // In every step the ranks also compare how often their parameters were written (torch's Tensor::_version()). If the
  // counts of writes differ, the ranks compare the parameters (ddp/equality/divergence_check.h).
  std::optional<std::int64_t> compare_every = std::nullopt;
  // The hook that exchanges gradients in place of the group's all-reduce (see ddp/comm_hook.h, and tensor_of() in
  // libtorch/comm_hook.h). The hook's name must be equal on all ranks.
  CommHook comm_hook = {};
  // The reaction to NaN and infinity in this rank's own gradients, see ddp/not_finite.h. In a group of one rank on a
  // device, gradients are not checked for NaN and infinity.
  NotFinite not_finite = NotFinite::tell;
  // The settings for computing the same bits with any number of ranks. If `reproducible` is on, each step is a call of
  // backward(rows, loss_of), and torch's generators are seeded per fixed micro-batch, not per rank. If `reproducible`
  // is on, the constructor sets torch's number of intra-op threads to Reproducible::threads. On a device the
  // constructor also turns on torch's deterministic algorithms for the process, and turns off cuDNN benchmarks. With
  // deterministic algorithms turned on, an operation of torch that has no deterministic algorithm throws an error.
  //
  // If `reproducible` is on, the constructor throws InvalidArgument for a module with a SyncBatchNorm, and on a device
  // without CUBLAS_WORKSPACE_CONFIG=:4096:8 (or :16:8). Each micro-batch begins with the buffers of the step; the
  // running statistics of batch norms are averaged over the micro-batches. A backward throws InvalidArgument if its
  // micro-batches left different values in another buffer for which `buffer_rules` has no rule, and for a batch norm in
  // training mode that is not part of the module.
  Reproducible reproducible = {};
  // The rules for buffers that forwards write and that are not running statistics of a batch norm, by the buffers'
  // dotted names. Without a rule, the micro-batches must leave equal values. A step in which all weights are 0
  // leaves all buffers as they were. The rules are used only if `reproducible` is on. Written buffers are sent to all
  // ranks after each step, once per micro-batch; keep them small. On a device the host waits for them, writes that
  // torch does not count (through data()) are not noticed, and a buffer must be written in the first step or never.
  std::map<std::string, BufferRule> buffer_rules = {};
  // The training state that the ranks divide among themselves. With Shard::optimizer each rank keeps the optimizer's
  // state of its shard and updates only the shard's weights. Shard::optimizer needs a ShardedOptimizer
  // (libtorch/sharded_optimizer.h), and changes nothing with a single rank. With Shard::optimizer the constructor
  // throws InvalidArgument for a comm_hook, and for a parameter whose elements are not contiguous.
  Shard shard = Shard::none;

  // The seed for torch's default generators of the CPU and of the group's device. Each forward that trains seeds the
  // default generators from `seed`, steps(), the number of earlier forwards in the step, and the rank. Dropout
  // therefore differs from rank to rank, and a run that resumes after set_steps() draws the same random numbers without
  // saved state. With another number of ranks, the forwards draw other random numbers. If `seed` is nullopt, the
  // program seeds the generators; torch::manual_seed(1) then gives every rank the same random numbers. With fixed
  // micro-batches, a `seed` of nullopt means a seed of 0.
  std::optional<std::uint64_t> seed = std::nullopt;
  // The dimension whose size is the number of rows, in the first tensor among forward's arguments. The number of rows
  // is the weight of this rank's gradients, unless set_weight() sets the weight. An LSTM without batch_first needs 1.
  std::int64_t batch_dim = 0;
  // If true, all ranks get rank 0's buffers (running statistics) before every forward that trains and is synchronised.
  // The buffers of a SyncBatchNorm are equal on all ranks and are not broadcast.
  bool broadcast_buffers = true;
  // If true, backward multiplies the gradient of the module's outputs by this rank's weight, instead of multiplying
  // each parameter's gradient. With weight_outputs set, backward saves a pass over the gradients. Set weight_outputs
  // only if the loss depends on the parameters only through the outputs (without a penalty on the parameters), and
  // gradients come only from backward().
  bool weight_outputs = false;
};

// LossWeight holds the number of terms of this rank's loss (a mean over these terms), until the next forward. Layers
// that compute across ranks share one LossWeight.
using LossWeight = std::shared_ptr<std::optional<std::int64_t>>;

// GradientOptions say how a collective that the loss depends on weights the gradients in its backward.
// DistributedDataParallel::gradient_options() returns GradientOptions.
struct GradientOptions {
  // The weight of this rank's loss, which backward reads. If loss_weight is null, the job's loss is the sum of the
  // ranks' losses. A rank whose weight is 0 contributes no gradients. If this rank's weight is 0 and the losses of
  // other ranks depend on elements that came from this rank, this rank's backward throws InvalidArgument.
  LossWeight loss_weight = nullptr;
  // The function that runs before each collective of a backward; the function may be empty. DistributedDataParallel
  // sets a function that plans its buckets. Planning the buckets blocks this rank, so the function runs while no rank
  // is in a collective that another rank has not reached.
  std::function<void()> before_backward = {};
};

}  // namespace lockstep::libtorch
