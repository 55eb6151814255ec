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
// - Collective: the constructor, plan_order, every synchronised step and update_shards are collective, and called in
//   one order on all ranks.
// - Threads: the Reducer belongs to one thread, which runs backward.
// - Failure: a call throws the group's errors, which begin with step and bucket; every later call throws the first
//   error again.
// - Misuse: a gradient marked ready twice, a step not begun, an unknown name and other wrong calls throw
//   InvalidArgument, which names parameter and step. A wrong call changes nothing.
// - Devices: with a group over NCCL, gradient() is an address on the device, and a call waits for the device only if
//   the call's comment says so.
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
  // If true, used_anywhere() says after each step which parameters some rank marked ready. Engines need the answer if
  // their graphs may leave parameters out. The answer travels with the last float32 bucket, 4 bytes per parameter.
  bool track_unused = false;
  // The way in which the loss combines its terms, equal on all ranks. With Loss::sum the engine writes gradients
  // without a factor, and the Reducer does not divide the gradients' sum over ranks and micro-batches.
  Loss loss = Loss::mean;
  // The exchange of the buckets that replaces the group's all-reduce, see ddp/comm_hook.h. The hook's name is equal on
  // all ranks. On a device with a hook, the host waits for the summed weight in the first two steps.
  CommHook comm_hook = {};
  // The reaction to NaN and infinity in this rank's own gradients.
  NotFinite not_finite = NotFinite::tell;
  // The settings for equal bits at any number of ranks (ddp/reproducible.h); the settings are equal on all ranks. Each
  // of this rank's fixed micro-batches is then a begin_step ... finish_step, in order, and only the last micro-batch is
  // synchronised. The engine writes each micro-batch's gradients without adding (overwrites() is true), and the Reducer
  // adds them up.
  //
  // The constructor throws InvalidArgument if there are fewer fixed micro-batches than ranks or more than 2^20, or if
  // the batch size or the number of threads is out of range. The constructor also throws with a comm_hook, for 16-bit
  // parameters, and on a device with LOCKSTEP_STEP_DIGESTS.
  Reproducible reproducible = {};
  // The state that ranks divide among themselves, equal on all ranks. With Shard::optimizer a synchronised finish_step
  // leaves the mean only in this rank's shard; update_shards() then updates the shard's weights, and gives all weights
  // to every rank. Buckets keep the order of plan_order, or, without plan_order, reverse registration order.
  Shard shard = Shard::none;
};

struct StepOptions {
  // The number of rows, or of terms that count in the loss, in this rank's gradients; 0 if this rank has no data. The
  // Reducer sums the buffers over the ranks and divides once by the summed weight, so the mean is exact for any
  // partition of the batch.
  std::int64_t weight = 1;
  // If true, this micro-batch is the last micro-batch of its step. If false, finish_step() sends nothing, and the next
  // begin_step() adds to gradients and weight (accumulating() is true).
  bool synchronize = true;
  // The numbers that travel with bucket 0 if the step is synchronised: see noted().
  StepNote note = {};
};

class LOCKSTEP_API Reducer {
 public:
  // Compares hashes of specs and options over the ranks, and allocates the arena that holds the gradients. The
  // constructor is collective. If specs or options differ, the constructor throws Mismatch on every rank, which names
  // the first parameter that differs, and the ranks. If a rank does not arrive, the constructor throws Timeout, which
  // names the missing ranks.
  Reducer(std::vector<ParameterSpec> specs, std::shared_ptr<ProcessGroup> group, const ReducerOptions& options = {});
  // Aborts the group if buckets are in flight, because the other ranks wait for this rank.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Broadcasts rank 0's arguments: the order in which gradients become ready, which the buckets follow, and the unit of
  // weights, at least 1. The call is collective, and comes before the first begin_step.
  //
  // Without this call the order in the first synchronised step is reverse registration order. The begin_step after this
  // step plans once more, in the order that rank 0 saw in the step; on a device the host waits for this order.
  void plan_order(std::span<const int> order, std::int64_t unit = 1);
  // Returns the unit of weights, which is 1 by default and on a device. The engine writes the gradient of its mean loss
  // times weight / weight_unit(), so a rank whose weight is one unit needs no multiplication. With a unit of 1 the
  // engine writes the gradient of the loss summed over its rows.
  std::int64_t weight_unit() const;

  // Begins a step, or a micro-batch of a step. On a device the call waits if the host is more than two steps ahead, and
  // may throw the failure of an earlier step's collective.
  void begin_step(const StepOptions& options = {});
  // Returns whether earlier micro-batches of this step have finished.
  bool accumulating() const;
  // Returns whether the engine overwrites gradients in this micro-batch. If false, the engine adds to the gradients of
  // earlier micro-batches, which are 0 for a parameter that was not marked.
  bool overwrites() const;
  // Returns the address of the parameter's gradient in the arena, which has contiguous elements in the parameter's
  // shape. On a device the address is in the device's memory: work in the group's stream() writes the gradient before
  // mark_ready, and work queued in this stream after finish_step reads the gradient.
  //
  // The address is valid until the next begin_step. An engine may also keep the address as long as plan_changes() does
  // not grow, because only then the gradient moves. Throws InvalidArgument for another dtype and for an unknown name.
  template <typename T>
  T* gradient(int parameter) {
    return static_cast<T*>(gradient_data(parameter, dtype_of<T>()));
  }
  template <typename T>
  T* gradient(std::string_view name) {
    return gradient<T>(index_of(name));
  }
  // Returns what gradient() returns, for a dtype that is known at run time. Throws InvalidArgument if the parameter has
  // another dtype.
  void* gradient_data(int parameter, DType dtype);
  // Declares the gradient final for this micro-batch. A bucket leaves when all its gradients are ready and the buckets
  // before it have left: all ranks launch buckets in the order of their index. A parameter that is never marked counts
  // as 0 in this micro-batch; unless overwrites(), the engine must not write its gradient.
  void mark_ready(int parameter);
  void mark_ready(std::string_view name) { mark_ready(index_of(name)); }
  // Declares that this micro-batch has no gradient of the parameter: the gradient counts as 0, and its bucket does not
  // wait for it. Throws as mark_ready() does.
  void mark_unused(int parameter);
  // Launches the remaining buckets and waits for all buckets; on a device the group's stream waits, and not the host.
  //
  // After a synchronised step, finish_step() returns the summed weight of all ranks; if no rank had data, the weight
  // and the gradients are 0. On a device it returns nullopt, because the host does not know the summed weight yet.
  // After a micro-batch that is not synchronised, finish_step() returns this rank's weight so far. With Loss::sum,
  // whose weights do not travel, finish_step() always returns this rank's weight.
  //
  // After this call the program may set another stream in the group. The new stream waits for the work that the old
  // stream had when finish_step returned, and the program may destroy the old stream. If later work in the old stream
  // reads gradients, the program orders this work itself.
  std::optional<std::int64_t> finish_step();
  // Returns the summed weight of all ranks in the last synchronised step; 0 before the first step. On a device the call
  // waits until the host knows the weight, at most for the group's timeout. Throws InvalidArgument within a
  // synchronised step.
  std::int64_t total_weight() const;
  // Returns whether all collectives of the last synchronised step and of its update_shards() have ended without a
  // failure. The result is always true on the CPU; on a device it is true once the host knows of their end. The call
  // never waits.
  bool is_step_over() const;
  // Returns the combined notes of all ranks, which are equal on every rank; their step is -1 before the first step.
  //
  // - On the CPU these are the notes of the last synchronised step, once its finish_step has returned.
  // - On a device these are the notes of two steps before the last begun step, once its begin_step has returned.
  const NotedStep& noted() const;
  // Returns whether any rank marked the parameter ready in the last synchronised step, in a micro-batch of a weight
  // above 0. If the summed weight is 0, marks in all micro-batches count. On a device the call waits as total_weight()
  // does, and returns true if the summed weight is 0. Throws InvalidArgument without ReducerOptions::track_unused.
  bool used_anywhere(int parameter) const;
  // Calls `update` for each part of this rank's shard, in the order of the buckets. `update` reads elements [begin,
  // end) of the parameter's gradient, and overwrites them with the updated weights; meanwhile the previous bucket
  // travels. After the call the gradients' memory holds the updated weights of all ranks, until the next begin_step.
  // The call is collective, needs Shard::optimizer, and may come once after a synchronised finish_step.
  //
  // With one rank the shard has all elements, and nothing travels. An exception of `update` is a failure of this rank,
  // as in abandon_step. Throws InvalidArgument without shards, or at another moment.
  void update_shards(const std::function<void(const ParameterShard&)>& update);
  // Returns the parts of `rank`'s shard in all buckets of the current plan; none without Shard::optimizer.
  std::vector<ParameterShard> shards(int rank) const;
  // Gives up a step whose backward has failed on this rank; does nothing if no step was begun or accumulated. The group
  // fails on every rank with "rank R (host, pid) failed in step S: `cause`". A group of one rank forgets the step with
  // its earlier micro-batches, and can continue.
  void abandon_step(std::string_view cause) noexcept;

  const std::vector<ParameterSpec>& parameters() const;
  const BucketPlan& plan() const;
  // Returns the number of times that gradients moved to other addresses: in plan_order, and in the begin_step that
  // plans again.
  int plan_changes() const;
  // Returns the gradients' memory. A copy of the pointer keeps the memory usable after the Reducer and the group
  // are destroyed.
  std::shared_ptr<void> memory() const;
  // Returns the index of the parameter with this name. Throws InvalidArgument if no parameter has the name.
  int index_of(std::string_view name) const;
  // Returns the times of the last synchronised step; StepRecord::step is -1 before the first step. On a device returns
  // the times of the last step whose end the host knows, perhaps an earlier step, because this call never waits.
  const trace::StepRecord& last_step() const;

 private:
  friend class Trainer;  // which also counts the steps of a single rank that send nothing
  struct LOCKSTEP_LOCAL Impl;
  explicit Reducer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
