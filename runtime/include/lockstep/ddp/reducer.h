// SPDX-License-Identifier: Apache-2.0
// The Reducer averages gradients over the ranks in buckets, while backward is still computing.
//
//   Reducer reducer(specs, group);
//   for (...) {
//     reducer.begin_step({.weight = rows});
//     float* dw = reducer.gradient<float>(i);   // write the gradient of the loss summed over this rank's rows
//     reducer.mark_ready(i);                    // its bucket may leave
//     reducer.finish_step();                    // gradients are the mean over all ranks' rows
//   }
//
// - Collective: the constructor, plan_order, every synchronised step and update_shards, in one order on all ranks.
// - Threads: the Reducer belongs to one thread, which runs backward.
// - Failure: a call throws the group's errors, which begin with step and bucket; every later call throws the same.
// - Misuse (a gradient marked ready twice, a step not begun, an unknown name) throws InvalidArgument, which names
//   parameter and step, and changes nothing.
// - Devices (a group over NCCL): gradient() is an address on the device, and calls wait for it only where their
//   comments say so.
//
// The Reducer knows buffers, not tensors: any engine that can write a gradient to an address can use it. See
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
  // Whether used_anywhere() says after each step which parameters some rank marked ready: for engines whose graph may
  // leave parameters out. The answer travels with the last float32 bucket, 4 bytes per parameter.
  bool track_unused = false;
  // How the loss combines its terms. With Loss::sum the engine writes gradients without a factor, and their sum over
  // ranks and micro-batches is not divided. Equal on all ranks.
  Loss loss = Loss::mean;
  // The exchange of the buckets that replaces the group's all-reduce, see ddp/comm_hook.h. Its name is the same on all
  // ranks. On a device the first two steps wait on the host for their weight.
  CommHook comm_hook = {};
  // The reaction to NaN and infinity in this rank's own gradients.
  NotFinite not_finite = NotFinite::tell;
  // The settings for the same bits at any number of ranks (ddp/reproducible.h). Each of this rank's fixed micro-batches
  // is then a begin_step ... finish_step, in order; its gradients are written, not added (overwrites() is true), the
  // Reducer adds them up, and only the last one is synchronised. Equal on all ranks.
  //
  // The constructor throws InvalidArgument if there are fewer fixed micro-batches than ranks or more than 2^20, if the
  // batch size or the number of threads is out of range, with a comm_hook, for 16-bit parameters, and on a device with
  // LOCKSTEP_STEP_DIGESTS.
  Reproducible reproducible = {};
  // The state that ranks divide among themselves. With Shard::optimizer a synchronised finish_step leaves the mean only
  // in this rank's shard; update_shards() then updates the shard's weights, and gives all weights to every rank.
  // Buckets keep the order of the first step: without plan_order, reverse registration order. Equal on all ranks.
  Shard shard = Shard::none;
};

struct StepOptions {
  // The number of rows, or of terms that count in the loss, that this rank's gradients stand for; 0 if it has no data.
  // The Reducer sums the buffers over the ranks and divides once by the summed weight, so the mean is exact for any
  // partition of the batch.
  std::int64_t weight = 1;
  // False for all but the last micro-batch of a step. finish_step() then sends nothing; the next begin_step() adds to
  // gradients and weight (accumulating() is true), until a synchronised micro-batch ends the step.
  bool synchronize = true;
  // Numbers that travel with bucket 0 if the step is synchronised: see noted().
  StepNote note = {};
};

class LOCKSTEP_API Reducer {
 public:
  // Collective. Compares hashes of specs and options over the ranks, and allocates the arena in which gradients lie.
  // Throws on every rank Mismatch, which names the first parameter that differs, and the ranks, or Timeout, which names
  // the ranks that did not arrive.
  Reducer(std::vector<ParameterSpec> specs, std::shared_ptr<ProcessGroup> group, const ReducerOptions& options = {});
  // Aborts the group if buckets are in flight, because the other ranks wait for this one.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Collective, before the first begin_step. Broadcasts the order in which gradients become ready, which the buckets
  // follow, and the unit of weights, at least 1. Only rank 0's arguments count.
  //
  // Without this call the order is reverse registration order in the first synchronised step; the begin_step after that
  // step plans once more, in the order that rank 0 saw, and on a device waits for it on the host.
  void plan_order(std::span<const int> order, std::int64_t unit = 1);
  // The unit of weights. The engine writes the gradient of its mean loss times weight / weight_unit(), so a rank whose
  // weight is one unit multiplies by nothing. With a unit of 1 that is the gradient of the sum over the rows. Default:
  // 1, which is also the only unit on a device.
  std::int64_t weight_unit() const;

  // Begins a step, or a micro-batch of one. On a device the call waits if the host is more than two steps ahead, and it
  // may throw the failure of an earlier step's collective.
  void begin_step(const StepOptions& options = {});
  // True if micro-batches of this step have finished before.
  bool accumulating() const;
  // True if this micro-batch's gradients are written as if none were there. False if they are added to those of earlier
  // micro-batches (0 for a parameter that was not marked).
  bool overwrites() const;
  // This parameter's gradient in the arena, as contiguous elements of its shape. On a device the address is the
  // device's: work in the group's stream() writes the gradient before mark_ready, and work queued there after
  // finish_step reads it.
  //
  // The address is valid until the next begin_step. It moves only when plan_changes() grows, so an engine may also keep
  // it and compare that number. Throws InvalidArgument for another dtype and for an unknown name.
  template <typename T>
  T* gradient(int parameter) {
    return static_cast<T*>(gradient_data(parameter, dtype_of<T>()));
  }
  template <typename T>
  T* gradient(std::string_view name) {
    return gradient<T>(index_of(name));
  }
  // As gradient(), by dtype. InvalidArgument if the parameter's dtype is another.
  void* gradient_data(int parameter, DType dtype);
  // Declares the gradient final for this micro-batch. A bucket leaves when it is full and the buckets before it have
  // left: all ranks launch buckets in the order of their index. A parameter that is never marked counts as 0 in this
  // micro-batch: leave its gradient alone unless overwrites().
  void mark_ready(int parameter);
  void mark_ready(std::string_view name) { mark_ready(index_of(name)); }
  // Declares that this micro-batch has no gradient of the parameter: it counts as 0, and its bucket does not wait for
  // it. Misuse throws as in mark_ready().
  void mark_unused(int parameter);
  // Launches the remaining buckets and waits for all of them; on a device the group's stream waits, and not the host.
  // Returns
  //
  // - after a synchronised step the summed weight of all ranks (0: no rank had data, the epoch is over, gradients are
  //   0); on a device nullopt, because the host does not know it yet;
  // - after another micro-batch this rank's weight so far;
  // - with Loss::sum, whose weights do not travel, always this rank's weight.
  //
  // After this call the program may set another stream in the group. The new stream waits for the work that the old one
  // had when finish_step returned, and the old one may be destroyed. The program itself orders later work in the old
  // stream that reads gradients.
  std::optional<std::int64_t> finish_step();
  // The summed weight of all ranks in the last synchronised step; 0 before the first. On a device the call waits until
  // it is known, at most the group's timeout. InvalidArgument within a synchronised step.
  std::int64_t total_weight() const;
  // Whether the collectives of the last synchronised step and of its update_shards() have ended, all without a failure.
  // True on the CPU; on a device true once the host knows it. Never waits.
  bool is_step_over() const;
  // The ranks' notes, combined, the same on every rank; step -1 before the first.
  //
  // - On the CPU: the notes of the last synchronised step, once its finish_step has returned.
  // - On a device: the notes of two steps before the last one begun, once its begin_step has returned.
  const NotedStep& noted() const;
  // Whether any rank marked the parameter ready in the last synchronised step, in a micro-batch of a weight above 0, or
  // in any micro-batch if the summed weight is 0. On a device the call waits as total_weight() does, and returns true
  // if the summed weight is 0. InvalidArgument without ReducerOptions::track_unused.
  bool used_anywhere(int parameter) const;
  // Collective, with Shard::optimizer, at most once after a synchronised finish_step. Calls `update` for each part of
  // this rank's shard, in the order of the buckets. `update` reads elements [begin, end) of the parameter's gradient,
  // and writes all updated weights in their place; meanwhile the bucket before travels. After the call the gradients'
  // places hold the updated weights of all ranks, until the next begin_step.
  //
  // With one rank the shard is all elements, and nothing travels. An exception of `update` is a failure of this rank,
  // as in abandon_step. InvalidArgument without shards, or at another moment.
  void update_shards(const std::function<void(const ParameterShard&)>& update);
  // The parts of `rank`'s shard in all buckets of the current plan. Empty without Shard::optimizer.
  std::vector<ParameterShard> shards(int rank) const;
  // Gives up a step whose backward has failed on this rank; does nothing if no step was begun or accumulated. The group
  // fails on every rank with "rank R (host, pid) failed in step S: `cause`". A single rank forgets the step, its
  // earlier micro-batches too, and can continue.
  void abandon_step(std::string_view cause) noexcept;

  const std::vector<ParameterSpec>& parameters() const;
  const BucketPlan& plan() const;
  // The number of times that gradients moved to other addresses: in plan_order, and in the one begin_step that plans
  // again.
  int plan_changes() const;
  // The gradients' memory. A copy keeps it usable after the Reducer and the group are destroyed.
  std::shared_ptr<void> memory() const;
  // The index of a parameter's name. InvalidArgument if there is none.
  int index_of(std::string_view name) const;
  // Times of the last synchronised step; its step is -1 before the first. On a device: times of the last step that is
  // known to have ended there, perhaps an earlier one, because this call never waits.
  const trace::StepRecord& last_step() const;

 private:
  friend class Trainer;  // counts also the steps of a single rank that send nothing
  struct LOCKSTEP_LOCAL Impl;
  explicit Reducer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
