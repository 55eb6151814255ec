// SPDX-License-Identifier: Apache-2.0
// One rank's replica of a torch::nn::Module: DistributedDataParallel without the module's type, whose base it is.
//
// Threads: one at a time; that of forward, and that of backward, on which torch calls the hooks.
// Failure: as distributed_data_parallel.h says.
#pragma once

#include <torch/nn/module.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/stop.h"
#include "lockstep/ddp/data_identity.h"
#include "lockstep/ddp/global_batch.h"
#include "lockstep/ddp/no_sync.h"
#include "lockstep/ddp/watched_loader.h"
#include "lockstep/libtorch/options.h"
#include "lockstep/trace/step_record.h"

namespace lockstep::libtorch {

class ReplicaEngine;

class LOCKSTEP_API Replica {
 public:
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // Sets the number of terms that this rank's loss is the mean of (tokens that count, say), in place of the rows, for
  // the next backward. Between forward and backward it holds until the next forward; before the first forward since the
  // last backward, for all forwards until the next, but with fixed micro-batches backward() then refuses it: call it in
  // each loss_of. InvalidArgument if it is negative.
  void set_weight(std::integral auto weight) { set_weight_to(static_cast<std::int64_t>(weight)); }
  void set_weight(std::floating_point auto weight) =
      delete;  // 0.5 would be 0: give all ranks' weights in smaller units

  // The weight of this rank's loss among the ranks', for collectives on the tensors that forward returned
  // (libtorch/collectives.h).
  GradientOptions gradient_options() const;

  // While one lives that is on, backward() sends nothing. Forward and backward both belong inside.
  NoSync no_sync(bool is_on = true);

  // Between forward and backward: this rank's loss of this micro-batch, which is one number, for last_loss() and
  // progress(); a backward alone does not tell it. A tensor on a device is read there some steps later, when it is
  // known without a wait. Returns it:
  //   ddp.record_loss(torch::nll_loss(ddp(x), y)).backward();
  // InvalidArgument elsewhere than between forward and backward, or for more than one element.
  at::Tensor record_loss(at::Tensor loss);
  void record_loss(double loss);
  // record_loss(loss) and loss.backward().
  void backward(const at::Tensor& loss) { record_loss(loss).backward(); }

  // A step of this rank's rows, which may be none: `loss_of(begin, end)` makes the loss of some of them, with a forward
  // through this object, and is called once for each of this rank's fixed micro-batches that has rows
  // (ddp/reproducible.h); if there are none, once for all rows. An exception of `loss_of` fails the group on every
  // rank. With fixed micro-batches gradients must be cleared before, and rows be dealt as fixed micro-batches:
  // InvalidArgument, behind which the group has failed.
  template <std::invocable<std::int64_t, std::int64_t> LossOf>
  void backward(std::int64_t rows, LossOf&& loss_of) {
    run_step(rows, std::ref(loss_of));
  }

  // Takes part in a step of the others without a forward of its own, with weight 0: for a rank whose data has run out.
  // InvalidArgument with a SyncBatchNorm in the module that trains: give that a forward of 0 rows.
  void step_without_data();

  // Checks, between steps, that the parameters are equal on all ranks, to the last bit. Collective and blocking.
  // Mismatch, on every rank, names the first that differs and the ranks. Parameters stay equal as long as each rank's
  // optimizer does the same.
  void check_replicas() const;

  // From now on a synchronised backward() finds ranks that read other data than each other, in length, seed, epoch,
  // batch size, order or where the pass began: Mismatch names what differs, and the ranks. `source`: a RankSampler, or
  // a DataLoader of lockstep::libtorch, which from now on ends with the training; in place of the one before. Costs no
  // message of its own. InvalidArgument if the sampler reads for another rank than this one.
  template <TellsIdentity Source>
  void watch(Source&& source) {
    require_rank_of_group(*group(), source);
    watch_data(source.identity());
    end_with_training(source, *group());
  }

  // Whether all ranks have agreed to end the training, and why (comm/stop.h): the same on every rank between the same
  // two steps. Loops over progress(loader, ddp), and over a loader that is watched, end by themselves then.
  bool should_stop() const { return lockstep::should_stop(*group()); }
  std::optional<std::string> stop_reason() const { return lockstep::stop_reason(*group()); }
  // For main() to return: 0, or after a stop for a signal 75, or LOCKSTEP_REQUEUE_EXIT_CODE.
  int exit_code() const { return lockstep::exit_code(*group()); }

  // For the optimizer: those that require a gradient, in registration order, a shared one once.
  std::vector<at::Tensor> parameters() const;
  const std::shared_ptr<ProcessGroup>& group() const;
  // Synchronised backwards finished.
  std::int64_t steps() const;
  // Sets the steps that a resumed run has done before. steps() counts from there, and so does randomness; records and
  // messages count this run's. Between steps, equal on all ranks. InvalidArgument if it is negative.
  void set_steps(std::int64_t steps);
  // A new generator on the group's device for the program's own draws of this step, such as noise and latents, seeded
  // from (DdpOptions::seed or 0, steps(), rank, `draw`); with fixed micro-batches, in loss_of, from the micro-batch in
  // place of the rank. A run that resumes draws the same numbers. The same `draw` in the same step, such as for two
  // micro-batches, repeats them. Torch's default generators are left alone.
  at::Generator generator(std::uint32_t draw = 0) const;
  // The unit of the gradients' weights (Reducer::weight_unit), which decides their last bits: rank 0's first weight, or
  // the value of set_weight_unit() before the first backward; a later call changes nothing. nullopt while it is not
  // known. Equal on all ranks. For Snapshots.
  std::optional<std::int64_t> weight_unit() const;
  void set_weight_unit(std::int64_t unit);
  // From now on runs `action` in each synchronised backward(), last: gradients are there, and no optimizer has written
  // a parameter. Null: nothing. For Snapshots.
  void before_update(std::function<void()> action);
  // Runs `action` at the begin of the next backward() that adds to the gradients of the one before: they were not
  // cleared, and no parameter was written in between; or they are a micro-batch's. On a device the host may wait to
  // know. Null: no action. For Snapshots.
  void before_adding(std::function<void()> action);
  // From now on runs `action` in each forward that begins with rank 0's buffers, once they are here. Null: nothing. For
  // Snapshots.
  void after_broadcast(std::function<void()> action);
  // The weight summed over all ranks in the last synchronised step, or this rank's so far. 0: no rank had data. On a
  // device blocks until the weight is known, and with Loss::sum returns this rank's.
  std::int64_t last_weight() const;
  // All ranks' rows and loss in the last synchronised step whose are known without a wait: on the CPU the last one, on
  // a device the one five steps before, and in a world of one the last that the device has ended.
  const GlobalBatch& last_batch() const;
  // The loss of the global batch, not of this rank's rows. nullopt if a rank with rows has not recorded its own.
  std::optional<double> last_loss() const { return last_batch().loss; }
  // The waits of the last synchronised step, and the collectives that ran behind backward. Empty (step -1) in a world
  // of one.
  const trace::StepRecord& last_step() const;
  // Whether the last synchronised step is over on the device too, as far as is known without a wait. On the CPU always.
  bool is_step_over() const;

  // For the library's own sources.
  const std::shared_ptr<ReplicaEngine>& engine() const { return engine_; }

 protected:
  // Collective: compares, broadcasts rank 0's values, and hooks every parameter that requires a gradient.
  Replica(const ::torch::nn::Module& module, std::shared_ptr<ProcessGroup> group, const DdpOptions& options);
  // Takes the hooks away and gives gradients memory of their own. The module may have gone. During unwinding after a
  // forward or backward that threw, it tells the other ranks.
  ~Replica();

  // In DdpOptions::batch_dim of forward's first tensor.
  std::int64_t rows_of(const at::Tensor& tensor) const;
  // Around a forward of the module. `rows` is the default weight; nullopt if no gradients are recorded.
  void before_forward(std::optional<std::int64_t> rows);
  // Called in the handler of the forward's exception.
  void forward_failed();
  // Puts the outputs behind the boundary, in place.
  void after_forward(std::span<at::Tensor* const> outputs);

 private:
  friend class StepCapture;
  void set_weight_to(std::int64_t weight);
  void run_step(std::int64_t rows, const std::function<at::Tensor(std::int64_t begin, std::int64_t end)>& loss_of);
  void watch_data(DataIdentity identity);

  std::shared_ptr<ReplicaEngine> engine_;  // shared with torch's threads, while they run a hook
};

}  // namespace lockstep::libtorch
