// SPDX-License-Identifier: Apache-2.0
// The state of a Reducer; its parts are reducer.cc (steps), reducer_order.cc (the order of the gradients) and
// reducer_shards.cc (shards).
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/owner_process.h"
#include "lockstep/ddp/reducer.h"
#include "runtime/ddp/bucket_hook.h"
#include "runtime/ddp/bucket_queue.h"
#include "runtime/ddp/equality/step_digests.h"
#include "runtime/ddp/finite_check.h"
#include "runtime/ddp/gradient_memory.h"
#include "runtime/ddp/micro_batch_sums.h"
#include "runtime/ddp/step_clock.h"
#include "runtime/ddp/used_map.h"

namespace lockstep {

// Returns the group; InvalidArgument if it is null.
std::shared_ptr<ProcessGroup> require_group(std::shared_ptr<ProcessGroup> group);

struct Reducer::Impl {
  Impl(std::vector<ParameterSpec> the_specs, std::shared_ptr<ProcessGroup> the_group, const ReducerOptions& the_options,
       std::shared_ptr<StepClock> the_clock);

  // reducer_order.cc: the order of the gradients, which is rank 0's.
  void plan_order(std::span<const int> order, std::int64_t the_unit);
  void adopt_order_of_rank0(std::vector<int> order);
  void adopt_unit_of_rank0(std::int64_t the_unit);
  BucketPlan plan_for(std::vector<int> order) const;
  void replan_as_observed();
  // Gradients become ready roughly in the reverse of the order in which layers were built.
  static std::vector<int> reverse_registration(std::size_t parameters);

  // reducer_shards.cc
  void update_shards(const std::function<void(const ParameterShard&)>& update);
  std::vector<ParameterShard> shards_of_rank(int rank) const;
  void give_up_update(std::string_view cause) noexcept;
  bool is_step_over() const;

  // reducer.cc
  void begin_step(const StepOptions& options);
  void* gradient_data(int parameter, DType dtype);
  void mark(std::string_view operation, int parameter, bool is_used);
  std::optional<std::int64_t> finish_step();
  std::int64_t total_weight();
  bool used_anywhere(int parameter);
  void abandon_step(std::string_view cause) noexcept;
  int index_of(std::string_view name) const;
  void abort_if_open() noexcept;

  std::int64_t step() const { return clock->step(); }
  bool overwrites() const { return finished_micro_batches == 0 || micro_batches != nullptr; }
  // Throws InvalidArgument unless the step's micro-batches begin in the order of their numbers.
  void require_turn(bool closes_step) const;
  // In the last micro-batch: adds to the slice the kept sums that it completes.
  void accumulate(std::size_t parameter);
  // Keeps a micro-batch, not the last, which is complete.
  void keep_micro_batch();
  // A parameter's gradient in the arena.
  std::span<const std::byte> slice(std::size_t parameter) const;
  void zero(std::size_t parameter);
  void zero_unmarked();
  void close_sum();
  std::size_t check_index(std::string_view operation, int parameter) const;
  void require_step(std::string_view operation) const;
  void rethrow_failure() const;
  // Runs `call`, which calls the group, and keeps its first failure: later calls throw that, never a consequence of it.
  template <typename Call>
  auto in_group(Call call) {
    try {
      return call();
    } catch (...) {
      failure = std::current_exception();
      throw;
    }
  }

  std::vector<ParameterSpec> specs;
  std::shared_ptr<ProcessGroup> group;
  std::shared_ptr<StepClock> clock;
  BucketOptions options;
  bool track_unused;
  bool is_mean;
  std::unique_ptr<MicroBatchSums> micro_batches;  // null without fixed micro-batches
  std::unique_ptr<StepDigests> digests;           // null unless LOCKSTEP_STEP_DIGESTS is set
  std::unique_ptr<BucketHook> hook;               // null: the group's own sum
  const bool is_sharded;
  std::vector<ParameterSpec> planned;  // the specs, and the slice of the used map
  std::map<std::string, int, std::less<>> index;
  BucketPlan plan;
  std::size_t gradient_bytes;  // of all gradients, and of the sums of fixed micro-batches after them
  GradientMemory memory;
  std::unique_ptr<FiniteCheck> finite;  // null: no check
  BucketQueue queue;
  std::unique_ptr<UsedMap> used_map;  // if track_unused

  std::int64_t unit = 1;  // the unit of weights
  int plan_changes = 0;
  bool order_is_known = false;  // by plan_order, or by the plan that followed the first synchronised step
  std::vector<int> observed;    // order of mark_ready in the first synchronised step

  bool in_step = false;
  std::vector<Work> gathers;  // on a device: the gathers of the last update_shards()
  // Whether the last synchronised step has shards whose weights no update_shards() has gathered.
  bool has_shards = false;
  bool begun_once = false;
  bool synchronize = true;
  std::int64_t weight = 0;         // sum over this rank's micro-batches since the last synchronised step, with this one
  bool has_rows = false;           // whether this micro-batch's weight is above 0
  std::int64_t own_total = 0;      // with Loss::sum: this rank's weight in the last synchronised step
  int finished_micro_batches = 0;  // micro-batches since the last synchronised step
  std::vector<char> marked;        // by parameter, in this micro-batch
  std::vector<Use> used;           // by parameter, marked ready by this rank since the last synchronised step

  std::exception_ptr failure;  // the first thing the group threw
  OwnerProcess owner;
};

}  // namespace lockstep
