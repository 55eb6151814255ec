// SPDX-License-Identifier: Apache-2.0
// The Reducer averages gradients over the ranks in buckets, while backward is still computing.
//
//   Reducer reducer(specs, group);
//   for (...) {
//     reducer.begin_step({.weight = rows});
//     float* dw = reducer.gradient<float>(i);   // write the gradient of the loss summed over this rank's rows
//     reducer.mark_ready(i);                    // the gradient's bucket may leave
//     reducer.finish_step();                    // gradients are the mean over all ranks' rows
//   }
//
// Collective: all ranks call the constructor, plan_order, every synchronised step and update_shards in the same order.
// Threads: only the thread that runs backward may use a Reducer.
// Failure: the Reducer's functions throw the group's errors, whose messages begin with the step and the bucket; every
//   later call throws the first error again.
// Misuse: the Reducer's functions throw InvalidArgument, with the parameter and the step in the message, if the engine
//   marks a gradient ready twice, has not begun a step, gives an unknown name or makes another mistake. A call that
//   throws InvalidArgument changes nothing.
// Devices: in a group over NCCL, gradient() returns an address on the device. A Reducer's call waits for the device
//   only if the call's comment says so.
//
// The Reducer depends on no tensor class: any engine that can write a gradient to an address can use a Reducer. See
// docs/OWN_GRADIENTS.md and docs/adr/0002-gradients-are-summed-with-their-weights.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/ddp/comm_hook.h"
#include "lockstep/ddp/loss.h"
#include "lockstep/ddp/not_finite.h"
#include "lockstep/ddp/reproducible.h"
#include "lockstep/ddp/step_note.h"
#include "lockstep/trace/step_record.h"

namespace lockstep {

struct ReducerOptions {
  BucketOptions buckets = {};
  // If true, used_anywhere() tells after each step whether any rank marked a parameter ready. An engine needs
  // used_anywhere() if its graph may leave parameters out of a step. If `track_unused` is true, the ranks send 4 bytes
  // per parameter along with the last float32 bucket, to exchange which parameters were marked ready.
  bool track_unused = false;
  // The way in which the loss combines its terms (mean or sum), equal on all ranks. With Loss::sum the engine writes
  // gradients without multiplying them by a weight, and the Reducer does not divide the gradients' sum over ranks
  // and micro-batches.
  Loss loss = Loss::mean;
  // The communication hook that exchanges the buckets in place of the group's all-reduce (ddp/comm_hook.h). The hook's
  // name must be equal on all ranks. If a comm_hook runs on a device, the host waits in each of the first two steps for
  // the weight summed over the ranks.
  CommHook comm_hook = {};
  // The Reducer's reaction to NaN and infinity in this rank's own gradients.
  NotFinite not_finite = NotFinite::tell;
  // The settings for computing the same bits with any number of ranks (ddp/reproducible.h), equal on all ranks. If
  // `reproducible` sets fixed micro-batches, the engine calls begin_step() and finish_step() for each of this rank's
  // fixed micro-batches, in order, and sets StepOptions::synchronize only for the last micro-batch. For each fixed
  // micro-batch the engine overwrites the gradients (overwrites() is true), and the Reducer adds up the gradients of
  // the micro-batches.
  //
  // The Reducer's constructor throws InvalidArgument if there are fewer fixed micro-batches than ranks or more than
  // 2^20, or if `global_batch` or `threads` of `reproducible` is out of range. With fixed micro-batches the constructor
  // also throws InvalidArgument for a comm_hook, for 16-bit parameters, and, on a device, if the variable
  // LOCKSTEP_STEP_DIGESTS is set.
  Reproducible reproducible = {};
  // The training state that the ranks divide among themselves; this setting must be equal on all ranks. With
  // Shard::optimizer, a synchronised finish_step() leaves the mean gradients only in this rank's shard. After
  // finish_step(), update_shards() updates the weights of this rank's shard, and gathers the updated weights of all
  // shards on every rank. With Shard::optimizer, buckets keep the order that plan_order() sets; without a call of
  // plan_order(), buckets keep the reverse of the registration order.
  Shard shard = Shard::none;
  // The number of specs at the end of the list that are not gradients, such as the sums from which the engine computes
  // running statistics. The engine writes and marks them like gradients, and the Reducer sums and divides them like
  // gradients. Such sums come last in the last bucket, and every rank gets the whole sums even with Shard::optimizer.
  int companions = 0;
};

struct StepOptions {
  // The number of rows, or of terms of the loss, that this rank's gradients come from; 0 if this rank has no data. The
  // Reducer sums the gradients over the ranks and divides the sums once by the summed weight, so the mean is exact for
  // any partition of the batch.
  std::int64_t weight = 1;
  // If true, this micro-batch is the last micro-batch of its step. If false, finish_step() sends nothing, and the next
  // micro-batch adds to this micro-batch's gradients and weight (accumulating() is then true).
  bool synchronize = true;
  // The numbers that the ranks exchange together with bucket 0 of a synchronised step; noted() returns the result.
  StepNote note = {};
};

class LOCKSTEP_API Reducer {
 public:
  // Compares hashes of specs and options over the ranks, and allocates the arena that holds the gradients. The
  // constructor is collective. If specs or options differ between ranks, the constructor throws Mismatch on every rank;
  // the message names the first parameter that differs, and the ranks. If a rank does not call the constructor in time,
  // the constructor throws Timeout, which names the missing ranks.
  Reducer(std::vector<ParameterSpec> specs, std::shared_ptr<ProcessGroup> group, const ReducerOptions& options = {});
  // Aborts the group if buckets are in flight, because the other ranks wait for this rank.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Broadcasts rank 0's `order` and `unit` to all ranks. The buckets follow `order`, a list of the parameters in the
  // order in which their gradients become ready. On the CPU, plan_order() sets weight_unit(), the unit in which the
  // engine counts weights, to rank 0's `unit`; `unit` must be at least 1. All ranks call plan_order() together, before
  // the first begin_step().
  //
  // Without plan_order(), buckets of the first synchronised step follow reverse registration order. Without
  // plan_order(), the begin_step() after the first synchronised step plans the buckets again, in the order in which
  // gradients became ready on rank 0. When begin_step() plans the buckets again on a device, the host waits for rank
  // 0's order.
  void plan_order(std::span<const int> order, std::int64_t unit = 1);
  // Returns the unit in which the engine counts weights; the unit is 1 by default, and always 1 on a device. The engine
  // multiplies the gradient of its mean loss by weight / weight_unit(), so a rank whose weight equals the unit needs no
  // multiplication. With a unit of 1 the engine writes the gradient of the loss summed over this rank's rows.
  std::int64_t weight_unit() const;

  // Begins a step, or a micro-batch of a step. On a device begin_step() waits if the host is more than two steps ahead
  // of the device, and may throw the error with which a collective of an earlier step failed.
  void begin_step(const StepOptions& options = {});
  // Returns whether earlier micro-batches of this step have finished.
  bool accumulating() const;
  // Returns whether the engine overwrites gradients in this micro-batch. If overwrites() is false, the engine adds its
  // gradients to the gradients of earlier micro-batches. If overwrites() is false, the gradient of a parameter that no
  // earlier micro-batch of the step marked ready begins at 0.
  bool overwrites() const;
  // Returns the address of the parameter's gradient in the arena. The gradient has contiguous elements in the
  // parameter's shape. On a device gradient() returns an address in the device's memory. On a device, the engine queues
  // its writes of the gradient in the group's stream() before it calls mark_ready(), and its reads in the same stream
  // after finish_step().
  //
  // The address of a gradient is valid until the next begin_step(). The address stays valid for longer if the next
  // begin_step() leaves plan_changes() unchanged, because gradients move only when plan_changes() grows. Throws
  // InvalidArgument if the parameter's dtype is not T's, or if no parameter has the name.
  template <typename T>
  T* gradient(int parameter) {
    return static_cast<T*>(gradient_data(parameter, dtype_of<T>()));
  }
  template <typename T>
  T* gradient(std::string_view name) {
    return gradient<T>(index_of(name));
  }
  // Returns the address that gradient() returns, for a dtype that is known only at run time. Throws InvalidArgument if
  // `dtype` is not the parameter's dtype.
  void* gradient_data(int parameter, DType dtype);
  // Declares the gradient final for this micro-batch. The Reducer starts to exchange a bucket when all gradients of the
  // bucket are ready and all earlier buckets have started, so all ranks start the buckets in the order of their index.
  // The gradient of a parameter that is never marked ready counts as 0 in this micro-batch. The engine may write the
  // gradients of parameters that it does not mark ready only if overwrites() is true.
  void mark_ready(int parameter);
  void mark_ready(std::string_view name) { mark_ready(index_of(name)); }
  // Declares, before mark_ready(), that the gradient as it lies in the arena holds no NaN and no infinity, as a bound
  // of its values may show. The Reducer then doesn't read the gradient to find out (NotFinite). declare_finite() has no
  // effect on a device, and in a step of several micro-batches.
  void declare_finite(int parameter);
  // Declares that this micro-batch has no gradient of the parameter. The gradient of an unused parameter counts as 0,
  // and the parameter's bucket does not wait for the gradient. Throws the same errors as mark_ready().
  void mark_unused(int parameter);
  // Starts the exchange of the remaining buckets, and waits until all buckets are exchanged. On a device only the
  // group's stream waits for the buckets; the host does not wait.
  //
  // After a synchronised step, finish_step() returns the summed weight of all ranks; if no rank had data, the weight
  // and the gradients are 0. On a device finish_step() returns nullopt after a synchronised step, because the host does
  // not know the summed weight yet. After a micro-batch that is not synchronised, finish_step() returns the weight that
  // this rank has accumulated in the step so far. With Loss::sum the ranks exchange no weights, so finish_step() always
  // returns this rank's weight.
  //
  // After finish_step() the program may call the group's set_stream() with another stream. The group's new stream waits
  // for all work that was queued in the old stream before finish_step() returned, so the program may destroy the old
  // stream. If the program later queues, in the old stream, work that reads gradients, the program itself must order
  // this work with the new stream.
  std::optional<std::int64_t> finish_step();
  // Returns the summed weight of all ranks in the last synchronised step, or 0 before the first step. On a device
  // total_weight() waits until the host knows the weight, at most for the group's timeout. Throws InvalidArgument
  // within a synchronised step.
  std::int64_t total_weight() const;
  // Returns whether all collectives of the last synchronised step, including those of update_shards(), have ended
  // without a failure. On the CPU is_step_over() always returns true; on a device it returns true once the host knows
  // that the collectives have ended. The call never waits.
  bool is_step_over() const;
  // Returns the StepNotes of all ranks, combined into one StepNote (ddp/step_note.h) that is equal on every rank.
  // NotedStep::step is -1 before the first synchronised step.
  //
  // On the CPU noted() returns the combined note of the last synchronised step, once finish_step() of this step has
  // returned. On a device noted() returns the combined note of step n - 2, once begin_step() of step n has returned.
  const NotedStep& noted() const;
  // Returns whether any rank marked the parameter ready in the last synchronised step, in a micro-batch whose weight is
  // above 0. If the summed weight of all ranks is 0, used_anywhere() counts a mark in any micro-batch. On a device
  // used_anywhere() waits until the host knows the summed weight, like total_weight(), and returns true if the summed
  // weight is 0. Throws InvalidArgument without ReducerOptions::track_unused.
  bool used_anywhere(int parameter) const;
  // Calls `update` for each part of this rank's shard, in the order of the buckets. `update` reads elements [begin,
  // end) of the parameter's gradient, and overwrites these elements with the updated weights. While `update` runs for
  // one bucket, the updated weights of the previous bucket travel to the other ranks. After update_shards() the
  // gradients' memory holds the updated weights of all ranks, until the next begin_step(). The call is collective, and
  // needs Shard::optimizer. The program may call update_shards() once after each synchronised finish_step().
  //
  // In a group of one rank, the shard has all elements, and update_shards() sends nothing. If `update` throws,
  // update_shards() rethrows the exception, and the group fails on every rank. After `update` has thrown, every later
  // call of the Reducer throws the exception again, even in a group of one rank. Throws InvalidArgument without
  // Shard::optimizer, and unless the call is the first after a synchronised finish_step() and before the next
  // begin_step().
  void update_shards(const std::function<void(const ParameterShard&)>& update);
  // Returns the parts of `rank`'s shard in all buckets of the current plan, or no parts without Shard::optimizer.
  std::vector<ParameterShard> shards(int rank) const;
  // Gives up a step whose backward has failed on this rank. If no step was begun or accumulated, abandon_step() does
  // nothing. The group fails on every rank with an error that names this rank, its host and pid, the step and `cause`.
  // In a group of one rank, abandon_step() only discards the step and the step's earlier micro-batches, and the Reducer
  // stays usable.
  void abandon_step(std::string_view cause) noexcept;

  const std::vector<ParameterSpec>& parameters() const;
  const BucketPlan& plan() const;
  // Returns the number of times that gradients moved to other addresses. Gradients move in plan_order(), and in the
  // begin_step() that plans the buckets again.
  int plan_changes() const;
  // Returns the gradients' memory. A copy of the returned pointer keeps the gradients' memory usable after the Reducer
  // and the group are destroyed.
  std::shared_ptr<void> memory() const;
  // Returns the index of the parameter whose name is `name`. Throws InvalidArgument if no parameter has this name.
  int index_of(std::string_view name) const;
  // Returns the times of the last synchronised step; the record's `step` is -1 before the first step. On a device
  // last_step() never waits, so it returns the times of the latest step that the host knows to have ended.
  const trace::StepRecord& last_step() const;

 private:
  friend class Trainer;  // which also counts the steps of a single rank that send nothing
  struct LOCKSTEP_LOCAL Impl;
  explicit Reducer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
