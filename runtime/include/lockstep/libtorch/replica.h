// SPDX-License-Identifier: Apache-2.0
// Replica is one rank's replica of a torch::nn::Module. Replica is the base class of DistributedDataParallel, and does
// not depend on the module's type.
//
// Threads: one thread at a time uses a Replica: the thread that runs forward, or the thread of backward, on which torch
// calls the hooks.
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

  // Sets this rank's weight for the next backward: the number of terms that this rank's loss is the mean of (such as
  // tokens), in place of the number of rows. Throws InvalidArgument if the number is negative.
  //
  // A weight that is set between a forward and its backward is used until the next forward. A weight that is set before
  // the first forward since the last backward is used for all forwards until the next backward. With fixed
  // micro-batches, backward() throws InvalidArgument if set_weight() was called before the first forward; call
  // set_weight() in each loss_of instead.
  void set_weight(std::integral auto weight) { set_weight_to(static_cast<std::int64_t>(weight)); }
  void set_weight(std::floating_point auto weight) =
      delete;  // 0.5 would become 0: give all ranks' weights in smaller units

  // Returns the GradientOptions with the weight of this rank's loss, for collectives on the tensors that forward
  // returned (libtorch/collectives.h).
  GradientOptions gradient_options() const;

  // Returns a guard. While the returned guard lives and `is_on` is true, backward() sends nothing, and `.grad` is
  // undefined until a synchronised backward() ends the step. After the synchronised backward(), `.grad` is the mean
  // over the rows of all micro-batches, so do not divide the loss. Run both forward and backward of a micro-batch while
  // the guard of no_sync() lives.
  NoSync no_sync(bool is_on = true);

  // Records this rank's loss of this micro-batch, a single number, for last_loss() and progress(), because torch's
  // backward does not show the loss. Returns the loss: ddp.record_loss(torch::nll_loss(ddp(x), y)).backward(); If a
  // loss is on a device, the host reads the loss some steps later, when the host can read without waiting. Throws
  // InvalidArgument if record_loss() is not called between forward and backward, or if `loss` is a tensor of more than
  // one element.
  at::Tensor record_loss(at::Tensor loss);
  void record_loss(double loss);
  // Runs record_loss(loss) and loss.backward(). After a synchronised backward, the `.grad` of each parameter that some
  // rank's loss depends on holds the gradient averaged (with Loss::sum: summed) over the rows of all ranks. The
  // averaged `.grad` has the same bits on all ranks. If no rank's loss depends on a parameter, the parameter keeps its
  // gradient, or has no gradient.
  //
  // If the program has not cleared a gradient, backward() adds its result to the gradient, and does not reduce the
  // earlier gradient again. With several ranks `.grad` is a view of the buckets' memory from the first backward on: the
  // program may keep, copy, zero or drop `.grad`. On the CPU each element of a 16-bit `.grad` is the float32 sum,
  // rounded once. With DdpOptions::shard `.grad` is NaN after a synchronised backward, because no rank has the whole
  // mean: use a ShardedOptimizer (libtorch/sharded_optimizer.h).
  //
  // On a device, events order the work in torch's current streams with the all-reduces. On a device the host waits only
  // in last_weight(), and if this rank's backward left out a parameter that DdpOptions::unused does not name.
  //
  // An exception that ends a backward fails the group on every rank at once, with this rank's name and the exception's
  // text. If the program's own exception is thrown within torch's autograd engine, only this rank knows the exception's
  // text. In a group of one rank, an exception in backward only discards the step, and does not fail the group, so the
  // program can continue.
  void backward(const at::Tensor& loss) { record_loss(loss).backward(); }

  // Runs a training step on this rank's `rows` rows; `rows` may be 0. `loss_of(begin, end)` runs a forward of rows
  // [begin, end) through this object, and returns the loss. Without fixed micro-batches (ddp/reproducible.h),
  // backward() calls `loss_of` once, for all rows. With fixed micro-batches, backward() calls `loss_of` once for each
  // of this rank's micro-batches that has rows. An exception of `loss_of` fails the group on every rank.
  //
  // With fixed micro-batches, the program must clear the gradients before the call, and must use a sampler that deals
  // fixed micro-batches. If the gradients are not cleared, or the sampler deals no fixed micro-batches, backward()
  // throws InvalidArgument and the group fails.
  template <std::invocable<std::int64_t, std::int64_t> LossOf>
  void backward(std::int64_t rows, LossOf&& loss_of) {
    run_step(rows, std::ref(loss_of));
  }

  // Returns true in a call of loss_of whose micro-batch doesn't count: the micro-batch belongs to another rank and is
  // computed for an audit (docs/AUDITS.md), or loss_of has computed the micro-batch before. A program that counts
  // something in loss_of, such as right answers, must not count such a micro-batch.
  bool is_auditing() const;

  // Takes part in a step of the other ranks without running a forward; this rank's weight in the step is 0. A rank
  // calls step_without_data() when its data has run out. Throws InvalidArgument if the module has a SyncBatchNorm that
  // trains: give the module a forward of 0 rows instead.
  void step_without_data();

  // Checks that the parameters are equal on all ranks, to the last bit. Call check_replicas() between steps. The call
  // is collective and blocking. If parameters differ, check_replicas() throws Mismatch on every rank; the message names
  // the first parameter that differs, and the ranks. Parameters stay equal on all ranks if every rank's optimizer does
  // the same work.
  void check_replicas() const;

  // Makes every later synchronised backward() check that all ranks read the same data: equal length, seed, epoch, batch
  // size, order and start of the pass. If the ranks read different data, backward() throws Mismatch with a message that
  // names the difference and the ranks. `source` is a RankSampler or a lockstep::libtorch DataLoader, and replaces the
  // source of an earlier watch(). The passes of a watched DataLoader end when the training ends. The check sends no
  // extra message, because its numbers travel with the gradients. Throws InvalidArgument if the sampler reads the rows
  // of a rank other than this rank.
  template <TellsIdentity Source>
  void watch(Source&& source) {
    require_rank_of_group(*group(), source);
    watch_data(source.identity());
    end_with_training(source, *group());
  }

  // Returns the reason for the stop once all ranks have agreed to end the training (comm/stop.h). All ranks get the
  // same reason between the same two steps. Loops over progress(loader, ddp), or over a loader given to watch(), end by
  // themselves when the ranks have agreed to stop.
  std::optional<std::string> should_stop() const { return lockstep::should_stop(*group()); }
  // Returns the exit code for main(). After a stop by a signal, exit_code() returns the value of
  // LOCKSTEP_REQUEUE_EXIT_CODE, or 75 if the variable is not set. Without a stop by a signal, exit_code() returns 0.
  int exit_code() const { return lockstep::exit_code(*group()); }

  // Returns the parameters that require a gradient, for the optimizer, in registration order. The returned list
  // contains a shared parameter only once.
  std::vector<at::Tensor> parameters() const;
  const std::shared_ptr<ProcessGroup>& group() const;
  // Returns the number of synchronised backwards that have finished.
  std::int64_t steps() const;
  // Sets the number of steps that a resumed run has done before. After set_steps(), steps() and random seeds count from
  // the number that was set; step records and messages count only the steps of this run. Call set_steps() between
  // steps, with the same value on all ranks. Throws InvalidArgument if the number is negative.
  void set_steps(std::int64_t steps);
  // Returns a new generator on the group's device for the program's own random numbers in this step, such as noise and
  // latents. The generator's seed comes from DdpOptions::seed (or 0), steps(), `key` and the rank. With fixed
  // micro-batches the seed does not depend on the rank: in a call of loss_of it depends on the micro-batch, and between
  // steps only on seed, steps() and `key`, such as the number of an environment. A run that resumes draws the same
  // random numbers as a run that was not stopped. A second generator with the same `key` in the same step repeats the
  // random numbers. A call of generator() does not change torch's default generators.
  at::Generator generator(std::uint32_t key = 0) const;
  // Returns the sum of all ranks' weights in the last synchronised step, or 0 if no rank had data. After a backward
  // that is not synchronised, last_weight() returns the weight that this rank has accumulated in the step so far. On a
  // device last_weight() waits until the host knows the weight, and with Loss::sum returns only this rank's weight.
  std::int64_t last_weight() const;
  // Returns the rows and loss of all ranks in the latest synchronised step that the host knows without waiting. On the
  // CPU last_batch() describes the last synchronised step. On a device last_batch() describes step n - 5 after step n;
  // with a single rank, last_batch() describes the last step that the device has finished.
  const GlobalBatch& last_batch() const;
  // Returns the loss of the global batch that last_batch() describes, or nullopt if a rank with rows did not
  // record its loss.
  std::optional<double> last_loss() const { return last_batch().loss; }
  // Returns the times of the last synchronised step: how long the step waited for collectives, and which collectives
  // ran during backward. In a group of one rank, the record of last_step() is empty (step -1).
  const trace::StepRecord& last_step() const;
  // Returns whether the device has finished the last synchronised step, as far as the host knows without waiting. On
  // the CPU is_step_over() always returns true.
  bool is_step_over() const;

  // Returns the ReplicaEngine of this Replica, for use by the library's own sources.
  const std::shared_ptr<ReplicaEngine>& engine() const { return engine_; }

 protected:
  // Compares the ranks' modules, broadcasts the values of rank 0's module, and sets a hook on every parameter that
  // requires a gradient. The constructor is collective.
  Replica(const ::torch::nn::Module& module, std::shared_ptr<ProcessGroup> group, const DdpOptions& options);
  // Removes the hooks and copies gradients out of the buckets' memory; the module may be destroyed already. If an
  // exception of a forward or backward unwinds the Replica, the destructor reports the exception to the other ranks.
  ~Replica();

  // Returns the number of rows of forward's first tensor, in dimension DdpOptions::batch_dim.
  std::int64_t rows_of(const at::Tensor& tensor) const;
  // Begins a forward of the module. `rows` is this rank's weight unless set_weight() has set a weight; nullopt means
  // that forward's arguments hold no tensor with rows.
  void before_forward(std::optional<std::int64_t> rows);
  // Returns whether the current forward is part of an audit, which then digests the forward's inputs.
  bool digests_inputs() const;
  void digest_input(const at::Tensor& input);
  // Gives the forward up. The caller calls forward_failed() in the handler of the forward's exception.
  void forward_failed();
  // Ends a forward of the module: replaces the outputs, in place, by tensors whose backward goes through this Replica.
  void after_forward(std::span<at::Tensor* const> outputs);

 private:
  friend class Snapshots;
  friend class StepCapture;
  // Returns the unit of the gradients' weights (Reducer::weight_unit), or nullopt while the unit is not known. The unit
  // affects the last bits of the gradients. The unit is rank 0's first weight, or the number that set_weight_unit() has
  // set before the first backward. A later set_weight_unit() changes nothing. The unit is equal on all ranks.
  std::optional<std::int64_t> weight_unit() const;
  void set_weight_unit(std::int64_t unit);
  // Runs `action` at the end of each later synchronised backward(), when gradients are complete and no optimizer has
  // written a parameter yet. Null removes the action.
  void before_update(std::function<void()> action);
  // Runs `action` at the beginning of the next backward() that adds to earlier gradients. Earlier gradients come from
  // a micro-batch, or from the previous step if the program has neither cleared these gradients nor written a
  // parameter since. On a device the host may wait to find out whether backward() adds to earlier gradients. Null
  // removes the action.
  void before_accumulate(std::function<void()> action);
  // Runs `action` in each later forward that receives rank 0's buffers, after the buffers have arrived. Null removes
  // the action.
  void after_broadcast(std::function<void()> action);
  // Returns the last step whose initial weights are sound as far as audits tell, or nullopt if no step had an audit.
  std::optional<std::int64_t> audited_step() const;
  // Sets audited_step() of the snapshot from which this run resumes. Call set_audited_step() before the first step.
  void set_audited_step(std::int64_t step);
  // Runs `action` on every rank before an audit's Mismatch is thrown, because a rank computes wrong values. States of
  // steps after `sound_step` may be wrong. Null removes the action.
  void before_blame(std::function<void(std::int64_t sound_step)> action);
  void set_weight_to(std::int64_t weight);
  void run_step(std::int64_t rows, const std::function<at::Tensor(std::int64_t begin, std::int64_t end)>& loss_of);
  void watch_data(DataIdentity identity);

  std::shared_ptr<ReplicaEngine> engine_;  // shared with torch's threads, while they run a hook
};

}  // namespace lockstep::libtorch
