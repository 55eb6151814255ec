// SPDX-License-Identifier: Apache-2.0
// Replica is the base of DistributedDataParallel that does not depend on the module's type: one rank's replica of a
// torch::nn::Module.
//
// Threads: one at a time: the thread of forward, and the thread of backward, on which torch calls the hooks.
// Failure: see distributed_data_parallel.h.
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
class Snapshots;
class StepCapture;

class LOCKSTEP_API Replica {
 public:
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // Sets the number of terms that this rank's loss is the mean of (tokens that count, say), in place of the rows, for
  // the next backward. InvalidArgument if it is negative.
  //
  // - Between forward and backward it holds until the next forward.
  // - Before the first forward since the last backward it holds for all forwards until the next backward. With fixed
  //   micro-batches backward() refuses that: call it in each loss_of.
  void set_weight(std::integral auto weight) { set_weight_to(static_cast<std::int64_t>(weight)); }
  void set_weight(std::floating_point auto weight) =
      delete;  // 0.5 would be 0: give all ranks' weights in smaller units

  // The weight of this rank's loss among all ranks' losses, for collectives on the tensors that forward returned
  // (libtorch/collectives.h).
  GradientOptions gradient_options() const;

  // Returns an object; while it lives and is_on is true, backward() sends nothing, and `.grad` is undefined until a
  // synchronised backward() ends the step. `.grad` is then the mean over the rows of all micro-batches: do not divide
  // the loss. Forward and backward both run while the object lives.
  NoSync no_sync(bool is_on = true);

  // Records this rank's loss of this micro-batch, one number, for last_loss() and progress(), because torch's backward
  // does not show it. Returns the loss:
  //   ddp.record_loss(torch::nll_loss(ddp(x), y)).backward();
  // A tensor on a device is read some steps later, when its value is known without a wait. InvalidArgument elsewhere
  // than between forward and backward, or for more than one element.
  at::Tensor record_loss(at::Tensor loss);
  void record_loss(double loss);
  // Runs record_loss(loss) and loss.backward(). After a synchronised backward every parameter that any rank's loss
  // depends on has as `.grad` the mean over the rows of all ranks (with Loss::sum the sum), the same bits on each. A
  // parameter that no rank's loss depends on keeps its gradient, or none.
  //
  // The result is added to a gradient that the program has not cleared, which is not reduced again. With several ranks
  // `.grad` is a view of the buckets' memory from the first backward on: keep it, copy it, zero it or drop it, as you
  // like. On the CPU a 16-bit `.grad` is rounded once from the float32 sum. With DdpOptions::shard `.grad` is NaN after
  // a synchronised backward, because no rank has the whole mean: use a ShardedOptimizer (libtorch/sharded_optimizer.h).
  //
  // On a device events order torch's current streams with the all-reduces. The host waits only in last_weight(), and if
  // this rank left out a parameter that is not in DdpOptions::unused.
  //
  // An exception that ends a backward fails the group on every rank at once, with this rank's name and its text; only
  // this rank knows the text of the user's own exception within torch's engine. A single rank forgets the step and
  // continues.
  void backward(const at::Tensor& loss) { record_loss(loss).backward(); }

  // Runs a step of this rank's rows, which may be none. `loss_of(begin, end)` makes the loss of some rows, with a
  // forward through this object. It is called once for each of this rank's fixed micro-batches that has rows
  // (ddp/reproducible.h); without fixed micro-batches once for all rows. An exception of `loss_of` fails the group on
  // every rank.
  //
  // With fixed micro-batches gradients must be cleared before, and the sampler must deal fixed micro-batches: otherwise
  // the call throws InvalidArgument and the group has failed.
  template <std::invocable<std::int64_t, std::int64_t> LossOf>
  void backward(std::int64_t rows, LossOf&& loss_of) {
    run_step(rows, std::ref(loss_of));
  }

  // Takes part in a step of the other ranks without a forward, with weight 0: for a rank whose data has run out.
  // InvalidArgument if the module has a SyncBatchNorm that trains: give the module a forward of 0 rows instead.
  void step_without_data();

  // Collective and blocking. Checks, between steps, that the parameters are equal on all ranks, to the last bit.
  // Mismatch, on every rank, names the first parameter that differs and the ranks. Parameters stay equal if every
  // rank's optimizer does the same.
  void check_replicas() const;

  // Makes every synchronised backward() from now on find ranks that read different data, in length, seed, epoch, batch
  // size, order or where the pass began: Mismatch names what differs, and the ranks. `source` is a RankSampler or a
  // lockstep::libtorch DataLoader; it replaces the one watched before, and a loader's passes end when the training
  // ends. The check needs no message of its own. InvalidArgument if the sampler reads for another rank.
  template <TellsIdentity Source>
  void watch(Source&& source) {
    require_rank_of_group(*group(), source);
    watch_data(source.identity());
    end_with_training(source, *group());
  }

  // The reason, once all ranks have agreed to end the training (comm/stop.h): the same on every rank between the same
  // two steps. Loops over progress(loader, ddp), and over a loader that is watched, end by themselves.
  std::optional<std::string> should_stop() const { return lockstep::should_stop(*group()); }
  // The value for main() to return: 0; after a stop by a signal 75, or LOCKSTEP_REQUEUE_EXIT_CODE.
  int exit_code() const { return lockstep::exit_code(*group()); }

  // The parameters that require a gradient, in registration order, a shared one once: for the optimizer.
  std::vector<at::Tensor> parameters() const;
  const std::shared_ptr<ProcessGroup>& group() const;
  // The number of synchronised backwards that have finished.
  std::int64_t steps() const;
  // Sets the number of steps that a resumed run has done before. steps() and randomness count from there; records and
  // messages count the steps of this run. Call it between steps, with the same value on all ranks. InvalidArgument if
  // it is negative.
  void set_steps(std::int64_t steps);
  // Returns a new generator on the group's device for the program's own draws in this step, such as noise and latents.
  // Its seed comes from (DdpOptions::seed or 0, steps(), rank, `draw`); in loss_of with fixed micro-batches, from the
  // micro-batch in place of the rank. A run that resumes draws the same numbers. The same `draw` in the same step, such
  // as for two micro-batches, repeats them. Torch's default generators are left alone.
  at::Generator generator(std::uint32_t draw = 0) const;
  // The weight summed over all ranks in the last synchronised step, or this rank's weight so far. 0: no rank had data.
  // On a device the call waits until the weight is known, and with Loss::sum returns this rank's.
  std::int64_t last_weight() const;
  // The rows and loss of all ranks in the latest synchronised step that is known without a wait. On the CPU that is the
  // last step; on a device it is the step five before the last, or with a single rank the last one that the device has
  // finished.
  const GlobalBatch& last_batch() const;
  // The loss of that global batch, not of this rank's rows. nullopt if a rank with rows did not record its loss.
  std::optional<double> last_loss() const { return last_batch().loss; }
  // Times of the last synchronised step: how long it waited for collectives, and which of them ran during backward.
  // Empty (step -1) with a single rank.
  const trace::StepRecord& last_step() const;
  // Whether the device, too, has finished the last synchronised step, as far as is known without a wait. True on the
  // CPU.
  bool is_step_over() const;

  // The engine, for the library's own sources.
  const std::shared_ptr<ReplicaEngine>& engine() const { return engine_; }

 protected:
  // Collective. Compares the ranks' modules, broadcasts rank 0's values, and hooks every parameter that requires a
  // gradient.
  Replica(const ::torch::nn::Module& module, std::shared_ptr<ProcessGroup> group, const DdpOptions& options);
  // Removes the hooks and gives gradients memory of their own; the module may be destroyed already. During unwinding
  // after a forward or backward that threw, it tells the other ranks.
  ~Replica();

  // The rows of forward's first tensor, in dimension DdpOptions::batch_dim.
  std::int64_t rows_of(const at::Tensor& tensor) const;
  // Begins a forward of the module. `rows` is the default weight; nullopt if no gradients are recorded.
  void before_forward(std::optional<std::int64_t> rows);
  // Called in the handler of the forward's exception.
  void forward_failed();
  // Ends a forward of the module: replaces the outputs, in place, by tensors whose backward passes through this object.
  void after_forward(std::span<at::Tensor* const> outputs);

 private:
  friend class Snapshots;
  friend class StepCapture;
  // The unit of the gradients' weights (Reducer::weight_unit), which decides their last bits: rank 0's first weight, or
  // the value of set_weight_unit() before the first backward; a later call changes nothing. nullopt while it is not
  // known. Equal on all ranks.
  std::optional<std::int64_t> weight_unit() const;
  void set_weight_unit(std::int64_t unit);
  // Runs `action` from now on at the end of each synchronised backward(): gradients are complete, and no optimizer has
  // written a parameter yet. Null: no action.
  void before_update(std::function<void()> action);
  // Runs `action` at the beginning of the next backward() that adds to earlier gradients: those of a micro-batch, or
  // those of the step before if they were not cleared and no parameter was written since. On a device the host may wait
  // to know. Null: no action.
  void before_adding(std::function<void()> action);
  // Runs `action` from now on in each forward that begins with rank 0's buffers, after they have arrived. Null: no
  // action.
  void after_broadcast(std::function<void()> action);
  void set_weight_to(std::int64_t weight);
  void run_step(std::int64_t rows, const std::function<at::Tensor(std::int64_t begin, std::int64_t end)>& loss_of);
  void watch_data(DataIdentity identity);

  std::shared_ptr<ReplicaEngine> engine_;  // shared with torch's threads, while they run a hook
};

}  // namespace lockstep::libtorch
