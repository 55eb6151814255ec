// SPDX-License-Identifier: Apache-2.0
// Reducer::Impl is the state of a Reducer. The functions of Reducer::Impl are in reducer.cc (steps), reducer_order.cc
// (the order of the gradients) and reducer_shards.cc (shards).
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

// Returns the group. Throws InvalidArgument if the group is null.
std::shared_ptr<ProcessGroup> require_group(std::shared_ptr<ProcessGroup> group);

struct Reducer::Impl {
  Impl(std::vector<ParameterSpec> the_specs, std::shared_ptr<ProcessGroup> the_group, const ReducerOptions& the_options,
       std::shared_ptr<StepClock> the_clock);

  // The functions from plan_order() to replan_as_observed(), in reducer_order.cc, make every rank lay out its gradients
  // in rank 0's order.
  void plan_order(std::span<const int> order, std::int64_t the_unit);
  void adopt_order_of_rank0(std::vector<int> order);
  void adopt_unit_of_rank0(std::int64_t the_unit);
  BucketPlan plan_for(std::vector<int> order) const;
  void replan_as_observed();
  // Returns the parameters' indices from the last to the first, because gradients become ready roughly in the reverse
  // of the order in which layers were built.
  static std::vector<int> reverse_registration(std::size_t parameters);

  // The next functions are in reducer_shards.cc.
  void update_shards(const std::function<void(const ParameterShard&)>& update);
  std::vector<ParameterShard> shards_of_rank(int rank) const;
  void give_up_update(std::string_view cause) noexcept;
  bool is_step_over() const;

  // The next functions are in reducer.cc.
  void begin_step(const StepOptions& options);
  void* gradient_data(int parameter, DType dtype);
  void declare_finite(int parameter);
  void mark(std::string_view operation, int parameter, bool is_used);
  std::optional<std::int64_t> finish_step();
  std::int64_t total_weight();
  bool used_anywhere(int parameter);
  void abandon_step(std::string_view cause) noexcept;
  int index_of(std::string_view name) const;
  void abort_if_open() noexcept;

  std::int64_t step() const { return clock->step(); }
  std::span<const ParameterSpec> sharded_specs() const { return std::span(specs).first(gradients); }
  bool overwrites() const { return finished_micro_batches == 0 || micro_batches != nullptr; }
  // Throws InvalidArgument if `closes_step` is false in this rank's last fixed micro-batch of the step, or true in an
  // earlier micro-batch.
  void require_turn(bool closes_step) const;
  // Adds the kept sums of earlier fixed micro-batches to the parameter's gradient in the last micro-batch.
  void accumulate(std::size_t parameter);
  // Keeps the gradients of a fixed micro-batch that is not the step's last.
  void keep_micro_batch();
  // Returns a parameter's gradient in the arena.
  std::span<const std::byte> slice(std::size_t parameter) const;
  void zero(std::size_t parameter);
  void zero_unmarked();
  void close_sum();
  std::size_t check_index(std::string_view operation, int parameter) const;
  void require_step(std::string_view operation) const;
  void rethrow_failure() const;
  // Runs `call`, which uses the group, and keeps an exception of `call` in `failure`. Later calls of the Reducer
  // rethrow `failure` instead of throwing an error that `failure` has caused.
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
  std::size_t gradients;  // the number of specs before ReducerOptions::companions
  std::shared_ptr<ProcessGroup> group;
  std::shared_ptr<StepClock> clock;
  BucketOptions options;
  bool track_unused;
  bool is_mean;
  std::unique_ptr<MicroBatchSums> micro_batches;  // the sums of fixed micro-batches, or null
  std::unique_ptr<StepDigests> digests;           // null unless LOCKSTEP_STEP_DIGESTS names a folder
  std::unique_ptr<BucketHook> hook;               // null if the group's own sum is used
  const bool is_sharded;
  std::vector<ParameterSpec> planned;  // the specs and, with track_unused, the used map
  std::map<std::string, int, std::less<>> index;
  BucketPlan plan;
  // The size in bytes of all gradients and of the kept sums of fixed micro-batches, which follow the gradients in
  // the arena.
  std::size_t gradient_bytes;
  GradientMemory memory;
  std::unique_ptr<FiniteCheck> finite;  // null with NotFinite::ignore
  BucketQueue queue;
  std::unique_ptr<UsedMap> used_map;  // null without track_unused

  std::int64_t unit = 1;  // the unit of weights
  int plan_changes = 0;
  // True if the order of the gradients is final. The order of the gradients becomes final with plan_order() or after
  // the first synchronised step, and is final from the start if there are shards.
  bool order_is_known = false;
  std::vector<int> observed;  // the order of the marks in the first synchronised step

  bool in_step = false;
  std::vector<Work> gathers;  // the all-gathers of the last update_shards() on a device
  // True if update_shards() may be called, because the last synchronised step has shards that are not updated yet.
  bool has_shards = false;
  bool begun_once = false;
  bool synchronize = true;
  std::int64_t weight = 0;         // this rank's weight since the last synchronised step, with the current micro-batch
  bool has_rows = false;           // whether the current micro-batch's weight is above 0
  std::int64_t own_total = 0;      // this rank's weight in the last synchronised step
  int finished_micro_batches = 0;  // the number of micro-batches since the last synchronised step
  std::vector<char> marked;        // whether each parameter is marked in the current micro-batch
  std::vector<Use> used;           // each parameter's use by this rank since the last synchronised step

  std::exception_ptr failure;  // the first exception from a call of the group
  OwnerProcess owner;
};

}  // namespace lockstep
