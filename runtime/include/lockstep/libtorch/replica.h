// SPDX-License-Identifier: Apache-2.0
// Replica is one rank's replica of a torch::nn::Module: the base class of DistributedDataParallel, which does not
// depend on the module's type.
//
// Threads: one thread at a time uses a replica: the thread of forward, or the thread of backward, on which torch calls
// the hooks.
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

  // Sets the number of terms that this rank's loss is the mean of (for example tokens that count), in place of the
  // rows, for the next backward. Throws InvalidArgument if the number is negative.
  //
  // - A call between forward and backward holds until the next forward.
  // - A call before the first forward since the last backward holds for all forwards until the next backward. With
  //   fixed micro-batches backward() refuses such a call: call set_weight() in each loss_of.
  void set_weight(std::integral auto weight) { set_weight_to(static_cast<std::int64_t>(weight)); }
  void set_weight(std::floating_point auto weight) =
      delete;  // 0.5 would become 0: give all ranks' weights in smaller units

  // Returns the options with the weight of this rank's loss among all ranks' losses, for collectives on the tensors
  // that forward returned (libtorch/collectives.h).
  GradientOptions gradient_options() const;

  // Returns a guard. While the guard lives and is_on is true, backward() sends nothing, and `.grad` is undefined until
  // a synchronised backward() ends the step. `.grad` is then the mean over the rows of all micro-batches: do not divide
  // the loss. Run both forward and backward while the guard lives.
  NoSync no_sync(bool is_on = true);

  // Records this rank's loss of this micro-batch, one number, for last_loss() and progress(), because torch's backward
  // does not show the loss. Returns the loss:
  //   ddp.record_loss(torch::nll_loss(ddp(x), y)).backward();
  // A tensor on a device is read some steps later, when its value is known without a wait. Throws InvalidArgument if
  // the call is not between forward and backward, or if the tensor has more than one element.
  at::Tensor record_loss(at::Tensor loss);
  void record_loss(double loss);
  // Runs record_loss(loss) and loss.backward(). After a synchronised backward, every parameter that any rank's loss
  // depends on has as `.grad` the mean over the rows of all ranks (with Loss::sum the sum), with the same bits on each
  // rank. A parameter that no rank's loss depends on keeps its gradient, or has none.
  //
  // A gradient that the program has not cleared is not reduced again; the result is added to that gradient. With
  // several ranks `.grad` is a view of the buckets' memory from the first backward on: the program may keep,
  // copy, zero or drop `.grad`. On the CPU a 16-bit `.grad` is rounded once from the float32 sum. With
  // DdpOptions::shard `.grad` is NaN after a synchronised backward, because no rank has the whole mean: use a
  // ShardedOptimizer (libtorch/sharded_optimizer.h).
  //
  // On a device events order torch's current streams with the all-reduces. The host waits only in last_weight(), and if
  // this rank left out a parameter that is not in DdpOptions::unused.
  //
  // An exception that ends a backward fails the group on every rank at once, with this rank's name and the exception's
  // text. If the user's own exception is thrown within torch's engine, only this rank knows its text. In a group of one
  // rank, the rank forgets the failed step and continues.
  void backward(const at::Tensor& loss) { record_loss(loss).backward(); }

  // Runs a step of this rank's rows, which may be none. `loss_of(begin, end)` makes the loss of rows [begin, end), with
  // a forward through this object. Without fixed micro-batches (ddp/reproducible.h) `loss_of` is called once, for all
  // rows; with fixed micro-batches `loss_of` is called once for each of this rank's micro-batches that has rows. An
  // exception of `loss_of` fails the group on every rank.
  //
  // With fixed micro-batches, clear the gradients before the call, and use a sampler that deals fixed micro-batches:
  // otherwise the call throws InvalidArgument and the group has failed.
  template <std::invocable<std::int64_t, std::int64_t> LossOf>
  void backward(std::int64_t rows, LossOf&& loss_of) {
    run_step(rows, std::ref(loss_of));
  }

  // Takes part in a step of the other ranks without a forward, with weight 0: for a rank whose data has run out. Throws
  // InvalidArgument if the module has a SyncBatchNorm that trains: give the module a forward of 0 rows instead.
  void step_without_data();

  // Checks, between steps, that the parameters are equal on all ranks, to the last bit. The call is collective and
  // blocking. Throws Mismatch on every rank, which names the first parameter that differs and the ranks. Parameters
  // stay equal if every rank's optimizer does the same work.
  void check_replicas() const;

  // Makes every later synchronised backward() check that all ranks read the same data: equal length, seed, epoch, batch
  // size, order and start of the pass. backward() then throws Mismatch, which names the difference and the ranks.
  // `source` is a RankSampler or a lockstep::libtorch DataLoader, and replaces the source watched before; a loader's
  // passes end when the training ends. The check sends no message of its own. Throws InvalidArgument if the sampler
  // reads for another rank.
  template <TellsIdentity Source>
  void watch(Source&& source) {
    require_rank_of_group(*group(), source);
    watch_data(source.identity());
    end_with_training(source, *group());
  }

  // Returns the reason once all ranks have agreed to end the training (comm/stop.h): the same reason on every rank
  // between the same two steps. Loops over progress(loader, ddp), and over a loader that is watched, end by themselves.
  std::optional<std::string> should_stop() const { return lockstep::should_stop(*group()); }
  // Returns the exit code for main(): after a stop by a signal the value of LOCKSTEP_REQUEUE_EXIT_CODE, or else 75;
  // otherwise 0.
  int exit_code() const { return lockstep::exit_code(*group()); }

  // Returns the parameters that require a gradient, for the optimizer: in registration order, with a shared
  // parameter once.
  std::vector<at::Tensor> parameters() const;
  const std::shared_ptr<ProcessGroup>& group() const;
  // Returns the number of synchronised backwards that have finished.
  std::int64_t steps() const;
  // Sets the number of steps that a resumed run has done before. steps() and randomness count from this number; records
  // and messages count the steps of this run. Call set_steps() between steps, with the same value on all ranks. Throws
  // InvalidArgument if the number is negative.
  void set_steps(std::int64_t steps);
  // Returns a new generator on the group's device for the program's own draws in this step, such as noise and latents.
  // The generator's seed comes from (DdpOptions::seed or 0, steps(), rank, `draw`); in loss_of with fixed
  // micro-batches, from the micro-batch in place of the rank. A run that resumes draws the same numbers. A second call
  // with the same `draw` in a step, for example for another micro-batch, repeats the numbers. The call does not change
  // torch's default generators.
  at::Generator generator(std::uint32_t draw = 0) const;
  // Returns the sum of all ranks' weights in the last synchronised step, or this rank's weight so far; 0 if no rank had
  // data. On a device the call waits until the weight is known, and with Loss::sum returns this rank's weight.
  std::int64_t last_weight() const;
  // Returns the rows and loss of all ranks in the latest synchronised step that is known without a wait. On the CPU
  // this step is the last step. On a device this step is the step five before the last step, or with a single rank the
  // last step that the device has finished.
  const GlobalBatch& last_batch() const;
  // Returns the loss of last_batch(), a global batch; nullopt if a rank with rows did not record its loss.
  std::optional<double> last_loss() const { return last_batch().loss; }
  // Returns the times of the last synchronised step: how long the step waited for collectives, and which collectives
  // ran during backward. The record is empty (step -1) with a single rank.
  const trace::StepRecord& last_step() const;
  // Returns whether the device, too, has finished the last synchronised step, as far as the host knows without a wait.
  // Returns true on the CPU.
  bool is_step_over() const;

  // Returns the engine, for the library's own sources.
  const std::shared_ptr<ReplicaEngine>& engine() const { return engine_; }

 protected:
  // Compares the ranks' modules, broadcasts rank 0's values, and hooks every parameter that requires a gradient. The
  // constructor is collective.
  Replica(const ::torch::nn::Module& module, std::shared_ptr<ProcessGroup> group, const DdpOptions& options);
  // Removes the hooks and copies gradients out of the buckets' memory; the module may be destroyed already. During
  // unwinding after a forward or backward that threw, the destructor tells the other ranks of the exception.
  ~Replica();

  // Returns the number of rows of forward's first tensor, in dimension DdpOptions::batch_dim.
  std::int64_t rows_of(const at::Tensor& tensor) const;
  // Begins a forward of the module. `rows` is the default weight; nullopt if the arguments hold no tensor to count.
  void before_forward(std::optional<std::int64_t> rows);
  // Gives the forward up. The caller calls forward_failed() in the handler of the forward's exception.
  void forward_failed();
  // Ends a forward of the module: replaces the outputs, in place, by tensors whose backward passes through this object.
  void after_forward(std::span<at::Tensor* const> outputs);

 private:
  friend class Snapshots;
  friend class StepCapture;
  // Returns the unit of the gradients' weights (Reducer::weight_unit), which decides the gradients' last bits; nullopt
  // while the unit is not known. The unit is rank 0's first weight, or the value of set_weight_unit() before the first
  // backward; a later set_weight_unit() changes nothing. The unit is equal on all ranks.
  std::optional<std::int64_t> weight_unit() const;
  void set_weight_unit(std::int64_t unit);
  // Runs `action` at the end of each later synchronised backward(), when gradients are complete and no optimizer has
  // written a parameter yet. Null removes the action.
  void before_update(std::function<void()> action);
  // Runs `action` at the beginning of the next backward() that adds to earlier gradients: gradients of a micro-batch,
  // or gradients of the step before if they were not cleared and no parameter was written since. On a device the host
  // may wait to know. Null removes the action.
  void before_accumulate(std::function<void()> action);
  // Runs `action` in each later forward that begins with rank 0's buffers, after the buffers have arrived. Null removes
  // the action.
  void after_broadcast(std::function<void()> action);
  void set_weight_to(std::int64_t weight);
  void run_step(std::int64_t rows, const std::function<at::Tensor(std::int64_t begin, std::int64_t end)>& loss_of);
  void watch_data(DataIdentity identity);

  std::shared_ptr<ReplicaEngine> engine_;  // shared with torch's threads, while they run a hook
};

}  // namespace lockstep::libtorch
