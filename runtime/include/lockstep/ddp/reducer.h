// SPDX-License-Identifier: Apache-2.0
// Bucketed all-reduces that run while backward is still computing.
//
// Knows buffers, not tensors: any engine that can write a gradient to an address can use it.
//
//   Reducer reducer(specs, group);
//   for (...) {
//     reducer.begin_step({.weight = samples});
//     float* dw = reducer.gradient<float>(i);   // write weight * d(mean loss)/dw there (over weight_unit(), see there)
//     reducer.mark_ready(i);                    // the bucket goes off when it is full and its turn has come
//     reducer.finish_step();                    // gradients are now the mean over the global batch
//   }
//
// The mean is exact for any partition of the batch, ranks without data included: buffers are summed over the ranks and
// divided once by the summed weight. Buckets are launched strictly in index order on every rank.
//
// Micro-batches: begin_step({.weight, .synchronize = false}) ... finish_step() communicates nothing; the next step adds
// to the gradients (accumulating() is true) and weights add up, until a synchronised step closes the sum.
//
// Fixed micro-batches (ReducerOptions::reproducible): each of this rank's is a micro-batch, in order, whose gradients
// are written as if there were none before (overwrites() is true); the last one is synchronised. The Reducer adds them
// up as ddp/reproducible.h says.
//
// Order: plan_order(order) before the first begin_step, by engines that know it; else reverse registration order, and
// one new plan, in rank 0's order, in the begin_step after the first synchronised step.
//
// Addresses: gradients lie in an arena of the group's and stay where they are, but for that one new plan: ask for
// gradient() after each begin_step, or at least again when plan_changes() has grown.
//
// On a device (a group of NCCL's): gradient() is an address there, to be written by work that is put into the group's
// stream() before mark_ready, and read by work that is put there after finish_step. No call of a step waits on the
// host, but for the begin_step that plans anew (plan_order spares it), and where the host is more than two steps ahead
// of the device: begin_step reads the note of the step before the last. So finish_step can't say the summed weight,
// total_weight() can; and a failure may show in a later call than the one whose collective failed. With a comm_hook the
// first two steps wait for their weight (ddp/comm_hook.h). A stream that is set between two steps comes after the work
// that the previous one had when finish_step returned, and the previous stream may be destroyed then; the program
// itself orders later work in it that reads gradients.
//
// Threads: one, the one that runs backward.
// Failure: throws the group's errors, with step and bucket in front; every later call throws the same. InvalidArgument
// for misuse (a gradient twice ready, a step not begun, an unknown name), naming parameter and step; it changes
// nothing. End: a Reducer that is destroyed while buckets are in flight aborts the group, for the others wait for this
// rank.
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
  // For engines whose graph may leave parameters out: used_anywhere() says after each step whether any rank marked a
  // parameter ready. The answer travels with the last float32 bucket, 4 bytes per parameter.
  bool track_unused = false;
  // Loss::sum: gradients are written as they are, not multiplied by the weight; their sum over ranks and micro-batches
  // is divided by nothing. Equal on all ranks.
  Loss loss = Loss::mean;
  // Exchanges the buckets in place of the group's all-reduce. Its name is the same on all ranks; see ddp/comm_hook.h.
  CommHook comm_hook = {};
  // The reaction to NaN and infinity in this rank's own gradients.
  NotFinite not_finite = NotFinite::tell;
  // The same bits at any number of ranks. Equal on all ranks. InvalidArgument from the constructor for fewer of them
  // than ranks or more than 2^20, a batch size or number of threads that can't be, with a comm_hook, for parameters of
  // 16 bits, and on a device with LOCKSTEP_STEP_DIGESTS.
  Reproducible reproducible = {};
  // Shard::optimizer: after a synchronised finish_step this rank has the mean in its shares alone, and update_shares()
  // gives every rank the weights that each has made of its own. Equal on all ranks. Gradients keep the places that they
  // have in the first step: without plan_order those of reverse registration order.
  Shard shard = Shard::none;
};

struct StepOptions {
  // The number of samples, or of terms that count in the loss, behind this rank's gradients. 0 is fine.
  std::int64_t weight = 1;
  // False for all but the last micro-batch of a step.
  bool synchronize = true;
  // Rides with bucket 0 if the step is synchronised: see noted().
  StepNote note = {};
};

class LOCKSTEP_API Reducer {
 public:
  // Collective. Compares specs and options over the ranks (hashes, by collectives): Mismatch, on every rank, names the
  // first parameter that differs, and the ranks; Timeout names those that did not come. Allocates the arena.
  Reducer(std::vector<ParameterSpec> specs, std::shared_ptr<ProcessGroup> group, const ReducerOptions& options = {});
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Collective, before the first begin_step: broadcasts rank 0's order of parameters, in which their gradients become
  // ready and which buckets follow, and its unit of weights, at least 1. Only rank 0's arguments count.
  void plan_order(std::span<const int> order, std::int64_t unit = 1);
  // Gradients are to be multiplied by weight / weight_unit(): by nothing where the optimizer's shards have one unit
  // each. 1 in a group that is not on the CPU.
  std::int64_t weight_unit() const;

  void begin_step(const StepOptions& options = {});
  // True if micro-batches of this step were finished before.
  bool accumulating() const;
  // False if this micro-batch is to be added to gradients that are there already (those of earlier ones; 0 where a
  // parameter was not marked).
  bool overwrites() const;
  // This parameter's slice of the arena, valid until the next begin_step (a new plan may move it there).
  template <typename T>
  T* gradient(int parameter) {
    return static_cast<T*>(gradient_data(parameter, dtype_of<T>()));
  }
  template <typename T>
  T* gradient(std::string_view name) {
    return gradient<T>(index_of(name));
  }
  // InvalidArgument if the parameter's dtype is another.
  void* gradient_data(int parameter, DType dtype);
  // The gradient is final for this micro-batch. Gradients never marked count as 0 in this micro-batch: leave their
  // slices alone unless it overwrites().
  void mark_ready(int parameter);
  void mark_ready(std::string_view name) { mark_ready(index_of(name)); }
  // This micro-batch has no gradient of the parameter, and none will come: counts as 0, and its bucket waits no longer
  // for it. Misuse as for mark_ready.
  void mark_unused(int parameter);
  // Launches the remaining buckets and waits for all; on a device the group's stream waits. Returns the summed weight
  // of all ranks (0: no rank had data, the epoch is over, gradients are 0), or of this rank so far if the step was not
  // synchronised. nullopt after a synchronised step on a device: the weight is not known yet. With Loss::sum, whose
  // weights don't travel, always this rank's.
  std::optional<std::int64_t> finish_step();
  // The summed weight of all ranks in the last synchronised step; 0 before the first. On a device blocks until it is
  // known, at most the group's timeout. InvalidArgument within a synchronised step.
  std::int64_t total_weight() const;
  // Whether the collectives of the last synchronised step and of its update_shares() have ended, and none in a failure:
  // on the CPU always, on a device as far as is known without a wait.
  bool is_step_over() const;
  // The reduction of the ranks' notes, the same on every rank: on the CPU those of the last synchronised step, from its
  // finish_step on; on a device those of two steps before the last one begun, from its begin_step on. step -1 before
  // the first.
  const NotedStep& noted() const;
  // With track_unused, of the last synchronised step: whether any rank marked the parameter ready in a micro-batch of a
  // weight above 0, or in any at all if the summed weight is 0. On a device blocks as total_weight() does, and is true
  // for all if the summed weight is 0. InvalidArgument if nothing is tracked.
  bool used_anywhere(int parameter) const;
  // Collective, with Shard::optimizer, once after a synchronised finish_step, or not at all. Calls `update` for each of
  // this rank's shares, in the order of the buckets: it reads elements [begin, end) of the parameter's gradient, and
  // writes the updated weights, all of them, in their place. A bucket travels while the next one's shares are updated.
  // When this returns, the gradients' places hold the updated weights of all ranks, until the next begin_step. In a
  // world of one the shares are all elements, and nothing travels. What `update` throws is a failure of this rank, as
  // in abandon_step. InvalidArgument without shards, or at another moment.
  void update_shares(const std::function<void(const ParameterShare&)>& update);
  // `rank`'s shares of all buckets; this plan's. Empty without Shard::optimizer.
  std::vector<ParameterShare> shares(int rank) const;
  // Gives up the step, whose backward has failed on this rank; does nothing if none was begun or accumulated. The group
  // fails on every rank with `cause`, behind this rank and step. A world of one forgets the step, its earlier
  // micro-batches too, and can continue.
  void abandon_step(std::string_view cause) noexcept;

  const std::vector<ParameterSpec>& parameters() const;
  const BucketPlan& plan() const;
  // Grows by one whenever gradients move to other addresses: in plan_order, and in the one begin_step that plans anew.
  int plan_changes() const;
  // The gradients' memory, which the holder of a copy may use after the Reducer and the group are destroyed.
  std::shared_ptr<void> memory() const;
  // Index of a name. InvalidArgument if there is none.
  int index_of(std::string_view name) const;
  // Times of the last synchronised step; its step is -1 before the first. On a device of the last step that is known to
  // have ended there: perhaps an earlier one, for this never waits.
  const trace::StepRecord& last_step() const;

 private:
  friend class Trainer;  // counts also the steps of a world of one that send nothing
  struct LOCKSTEP_LOCAL Impl;
  explicit Reducer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
