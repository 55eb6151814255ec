// SPDX-License-Identifier: Apache-2.0
// One rank's replica of a torch::nn::Module: the work of DistributedDataParallel without the module's type.
//
// Threads: one at a time; that of forward, and that of backward, on which torch calls the hooks.
// Failure: as distributed_data_parallel.h says.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/data_identity.h"
#include "lockstep/ddp/global_batch.h"
#include "lockstep/ddp/no_sync.h"
#include "lockstep/libtorch/options.h"
#include "lockstep/trace/step_record.h"

namespace lockstep::libtorch {

class LOCKSTEP_API Replica {
 public:
  // Collective: compares, broadcasts rank 0's values, and hooks every parameter that requires a gradient.
  static std::shared_ptr<Replica> create(const ::torch::nn::Module& module, std::shared_ptr<ProcessGroup> group,
                                         const DdpOptions& options);
  virtual ~Replica() = default;
  // Takes the hooks away and gives gradients memory of their own. The module may have gone. During unwinding after a
  // forward or backward that threw, it tells the other ranks.
  virtual void detach() noexcept = 0;

  // Around a forward of the module. `rows` is the default weight; nullopt if no gradients are recorded.
  virtual void before_forward(const ::torch::nn::Module& module, std::optional<std::int64_t> rows) = 0;
  // Called in the handler of the forward's exception. `others_wait`: in a collective of the forward's.
  virtual void forward_failed(bool others_wait) noexcept = 0;
  // The name of a SyncBatchNorm whose forward would be a collective now.
  static std::optional<std::string> collective_norm(const ::torch::nn::Module& module);
  // Puts the outputs behind the boundary, in place.
  virtual void after_forward(std::span<at::Tensor* const> outputs) = 0;

  // In DdpOptions::batch_dim of forward's first tensor.
  virtual std::int64_t rows_of(const at::Tensor& tensor) const = 0;
  virtual void set_weight(const ::torch::nn::Module& module, std::int64_t weight) = 0;
  // Null with Loss::sum.
  virtual GradientOptions gradient_options() = 0;
  virtual void step_without_data(const ::torch::nn::Module& module) = 0;
  // A step in virtual shards, or of one: those of this rank; then each in its turn. True: a forward, a backward and
  // end_shard() are to follow; false: it had no rows, and is done.
  virtual std::vector<StepShard> begin_shards(std::int64_t rows) = 0;
  virtual bool begin_shard(const ::torch::nn::Module& module, const StepShard& shard) = 0;
  virtual void end_shard() = 0;
  // Called in the handler of an exception of the program's loss_of.
  virtual void shard_failed() noexcept = 0;
  virtual NoSync no_sync(bool is_on) = 0;

  // For StepCapture (libtorch/captured_step.h). From now on gradients are accumulated in this thread's current stream.
  // InvalidArgument, by the parameter's name, if a graph holds its accumulator.
  virtual void accumulate_here() = 0;
  // Clears the gradients. InvalidArgument in no_sync() and behind its micro-batches.
  virtual void begin_step() = 0;
  // Forwards with gradients: how many have begun, and the rows of the last.
  struct Forwards {
    std::int64_t count = 0;
    std::optional<std::int64_t> rows = std::nullopt;
  };
  virtual const Forwards& forwards() const = 0;
  // The part of a step that is captured: the loss and its backward, which begins no step, sends nothing, and leaves the
  // gradients, weighed by a number on the device, in the arena; in a world of one where autograd puts them.
  virtual at::Tensor compute_captured(const std::function<at::Tensor()>& loss_of) = 0;
  // Around a replay of it. before_replay() does what a forward of `rows` does ahead of the module's own. `weight`:
  // nullopt for the rows.
  virtual void before_replay(const ::torch::nn::Module& module, std::optional<std::int64_t> rows,
                             std::optional<std::int64_t> weight) = 0;
  virtual void after_replay() = 0;

  // Records the loss of this micro-batch, between forward and backward.
  virtual void record_loss(const at::Tensor& loss) = 0;
  virtual void record_loss(double loss) = 0;

  virtual std::vector<at::Tensor> parameters() const = 0;
  virtual const std::shared_ptr<ProcessGroup>& group() const = 0;
  virtual std::int64_t steps() const = 0;
  virtual void set_steps(std::int64_t steps) = 0;
  virtual at::Generator generator(std::uint32_t draw) const = 0;
  virtual std::optional<std::int64_t> weight_unit() const = 0;
  virtual void set_weight_unit(std::int64_t unit) = 0;
  virtual void before_update(std::function<void()> action) = 0;
  virtual void before_adding(std::function<void()> action) = 0;
  virtual void after_broadcast(std::function<void()> action) = 0;
  virtual std::int64_t last_weight() const = 0;
  virtual const GlobalBatch& last_batch() const = 0;
  virtual void check_replicas(const ::torch::nn::Module& module) = 0;
  virtual void watch(DataIdentity identity) = 0;
  // For ShardedOptimizer (libtorch/sharded_optimizer.h). This rank's shares of parameters(), flat, perhaps of 0
  // elements, whose .grad is the share's mean behind a synchronised backward; empty where parameters are whole.
  virtual const std::vector<at::Tensor>& shares() const = 0;
  // InvalidArgument where an optimizer has them already.
  virtual void claim_shares(bool is_claimed) = 0;
  // Collective, once behind a synchronised backward, else InvalidArgument: calls `step` for each bucket, whose shares
  // alone have a .grad then, and gives every rank the weights of all.
  virtual void update_shares(const std::function<void()>& step) = 0;
  // Leaves parameters without gradients, or with zeros where they had some; shares without.
  virtual void clear_gradients(bool set_to_none) = 0;
  virtual const trace::StepRecord& last_step() const = 0;
  virtual bool is_step_over() const = 0;
};

}  // namespace lockstep::libtorch
