// SPDX-License-Identifier: Apache-2.0
// How a torch::nn::Module is trained in parallel.
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

// Equal on all ranks. The first nine are those of lockstep::DdpOptions; a struct of their own, for designated
// initialisers don't reach into a base.
struct DdpOptions {
  BucketOptions buckets = {};
  // How the loss combines its terms: Loss::sum for reduction='sum'.
  Loss loss = Loss::mean;
  // Parameters, by dotted name, that are known never to get a gradient, on any rank: they hold up no bucket. Others are
  // found out at the end of each backward.
  std::vector<std::string> unused = {};
  // False: buckets leave at the end of backward. For backwards that come to a parameter several times: activation
  // checkpoints that share it, or a backward within a backward; and where one backward goes through several modules of
  // one group, of which the ranks leave out different parameters. With a SyncBatchNorm of this group it counts as
  // false.
  bool overlap = true;
  // A digest of the parameters is compared over the ranks in every step whose number is a multiple; 0: in none.
  // Default: 100 on the CPU; on a device 0, for the parameters are copied to the host. Beside it the ranks compare in
  // each step how often their parameters were written (torch's Tensor::_version()), and, if that differs, the
  // parameters: ddp/equality/divergence_check.h.
  std::optional<std::int64_t> compare_every = std::nullopt;
  // Exchanges gradients in place of the group's all-reduce: ddp/comm_hook.h, and tensor_of() in libtorch/comm_hook.h.
  // Its name is the same on all ranks.
  CommHook comm_hook = {};
  // How NaN and infinity in this rank's own gradients are treated: ddp/not_finite.h. A world of one on a device does
  // not look.
  NotFinite not_finite = NotFinite::tell;
  // The same bits at any number of ranks: each step is a backward(rows, loss_of), and seeds of generators are of
  // fixed micro-batches in place of ranks. Sets torch's intra-op threads to its threads; on a device also, for the
  // process, torch's deterministic algorithms (an operation that has none is torch's error), and no cuDNN benchmarks.
  // InvalidArgument with a SyncBatchNorm, on a device without CUBLAS_WORKSPACE_CONFIG=:4096:8 (or :16:8), and from a
  // backward whose forward wrote a buffer (running statistics), on whose order they depend.
  Reproducible reproducible = {};
  // Shard::optimizer: each rank keeps the optimizer's state and updates the weights of its share of the parameters
  // alone; needs a ShardedOptimizer (libtorch/sharded_optimizer.h). InvalidArgument with a comm_hook, and for a
  // parameter whose elements do not lie together. A world of one has no shares.
  Shard shard = Shard::none;

  // If set, each forward that trains seeds torch's default generators, the CPU's and that of the group's device, from
  // (seed, steps(), number of earlier forwards of the step, rank): dropout differs from rank to rank, and a run that
  // resumes after set_steps() draws the same numbers as without the stop, with no saved state. With another number of
  // ranks the noise differs. nullopt: the program seeds, and torch::manual_seed(1) gives every rank the same noise;
  // with fixed micro-batches the seed is then 0.
  std::optional<std::uint64_t> seed = std::nullopt;
  // The dimension of forward's first tensor that counts rows: the weight of this rank's gradients, unless
  // set_weight() says otherwise. 1 for an LSTM without batch_first.
  std::int64_t batch_dim = 0;
  // Rank 0's buffers (running statistics) for all, before every forward that trains and is synchronised. Buffers of a
  // SyncBatchNorm are equal on all ranks and are not broadcast.
  bool broadcast_buffers = true;
  // True: the weight is multiplied into the gradient that enters the module's outputs, instead of into each
  // parameter's: a pass over the gradients less. Only where the loss depends on the parameters through the outputs
  // alone (no penalty on the parameters in the loss) and gradients are taken by backward() alone.
  bool weigh_outputs = false;
};

// The number of terms that this rank's loss is the mean of, until the next forward. Shared with layers that compute
// across ranks.
using LossWeight = std::shared_ptr<std::optional<std::int64_t>>;

// The weighing of gradients that come back through a collective in the loss.
// DistributedDataParallel::gradient_options() has them.
struct GradientOptions {
  // The weight of this rank's loss; read in backward. Null: the job's loss is the sum of the ranks' losses. With a
  // weight of 0 this rank gives no gradients; InvalidArgument from backward if it gave elements that others' losses
  // depend on.
  LossWeight loss_weight = nullptr;
  // Called ahead of each collective of a backward. May be empty. DistributedDataParallel's plans its buckets, which
  // blocks, while no rank is in a collective that another has not reached.
  std::function<void()> before_backward = {};
};

}  // namespace lockstep::libtorch
