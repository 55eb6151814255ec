// SPDX-License-Identifier: Apache-2.0
// BucketQueue launches the buckets of a synchronised step strictly in index order, and records their times.
//
// On a device the host only launches. A bucket's all-reduce runs after the work that is in the compute stream at the
// launch. From finish() on, the compute stream waits for the all-reduces.
//
// With a communication hook, a small all-reduce at the step's begin carries weight and note, and the hook gets
// the buckets. On a device finish() takes the hook's results, and the host waits for the weight only in the first
// two steps.
//
// The queue knows neither parameter names nor micro-batches; the Reducer knows both.
// Threads: only the Reducer's thread calls this class.
// Failure: throws the group's errors, which begin with the step and the bucket.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/ddp/step_note.h"
#include "lockstep/trace/step_record.h"
#include "runtime/ddp/bucket_hook.h"
#include "runtime/ddp/finite_check.h"
#include "runtime/ddp/gradient_memory.h"
#include "runtime/ddp/step_clock.h"
#include "runtime/ddp/step_marks.h"

namespace lockstep {

class BucketQueue {
 public:
  // `clock`, `memory`, `hook` and `finite` must outlive this object; `hook` and `finite` may be null. `memory` holds
  // the buckets of every plan that begin() gets. On a device with a hook, `memory` also has a word for the step's
  // weight at `total_at`. Each rank gets only its part of the sum of a bucket whose first parameter is below `sharded`.
  BucketQueue(std::shared_ptr<ProcessGroup> group, const StepClock& clock, const GradientMemory& memory,
              std::size_t total_at, BucketHook* hook, FiniteCheck* finite, int sharded = 0);

  // Starts the current step of the clock. `plan` must outlive the step. `note` travels with bucket 0 or, with a hook,
  // before bucket 0. On a device the call waits, at most the group's timeout, until the step before the last has
  // finished its bucket 0, and reads that step's note.
  void begin(const BucketPlan& plan, const StepWeight& weight, const StepNote& note);
  // Notes that one more gradient of `bucket` is final. Launches every bucket that is full and has its turn, and
  // advances the running collectives.
  void gradient_ready(int bucket);
  // Launches the remaining buckets and waits for all buckets, at most the group's timeout. On a device the compute
  // stream waits, and the host does not.
  void finish();
  // Returns the sum of all ranks' weights in the step that finished last, or 1 if the step divided nothing. Returns 0
  // before the first step. On a device total_weight() waits for the step on the host, at most the group's timeout.
  std::int64_t total_weight();
  // See Reducer::is_step_over().
  bool is_step_over() const;

  // Returns the note that was read last. On the CPU the note belongs to the step that finished last, on a device to the
  // step two before the step that began last.
  const NotedStep& noted() const { return noted_; }

  // Forgets the step that has begun. On a device the compute stream waits for the collectives that were launched.
  // REQUIRES: a single rank or a failed group, so that no other rank waits for the step's buckets.
  void drop();

  // Returns whether some bucket was launched and its result has not been seen.
  bool under_way() const { return next_finished_ < next_launched_; }
  // Returns whether a step has begun and launched a collective, and finish() has not returned. Other ranks then wait
  // for the rest of the step.
  bool is_open() const { return plan_ != nullptr && (next_launched_ > 0 || hook_ != nullptr); }
  // Returns the record of the step that finished last; on a device, of the last step that is known to have ended on
  // the device.
  const trace::StepRecord& last() const { return marks_ ? marks_->last() : last_; }

 private:
  void read_note_before_last();
  // Starts the collective that carries the step's weight and note. REQUIRES: a hook.
  void announce();
  void await_announcement();
  bool goes_to_hook(std::size_t bucket) const { return hook_ != nullptr && hook_->takes(plan_->buckets[bucket]); }
  // Returns the collective that carries the current step's weight and note.
  const Work& told() const { return hook_ != nullptr ? announcement_ : works_.front(); }
  // Returns the divisor of the step whose told() is `told`.
  std::int64_t total_of(const Work& told) const {
    return hook_ != nullptr && !weight_.is_mean ? 1 : told.total_weight();
  }
  BufferView buffer_of(std::size_t bucket) const;
  Work reduce(std::size_t bucket, const ReductionOptions& options);
  bool is_done(std::size_t bucket) const;
  // Takes the result of a bucket whose work is done.
  void complete(std::size_t bucket);
  void launch_full();
  void launch(std::size_t bucket);
  void see_finished();
  void await_all();
  void finish_on_device();
  void wait_in_stream();
  void close_record(trace::Time finish_begin);
  template <typename Call>
  auto at_bucket(std::size_t bucket, Call call) const;
  template <typename Call>
  auto at_announcement(Call call) const;

  std::shared_ptr<ProcessGroup> group_;
  const StepClock& clock_;
  const GradientMemory& memory_;
  std::unique_ptr<StepMarks> marks_;  // the marks of each step; null on the CPU
  const BucketPlan* plan_ = nullptr;  // the current step's plan, owned by the Reducer; null between steps
  std::int64_t* total_on_device_;     // the step's weight on a device with a hook; otherwise null
  BucketHook* hook_;
  FiniteCheck* finite_;
  const int sharded_;
  Work announcement_;          // the current step's announcement, with a hook
  bool is_announced_ = false;  // whether await_announcement() has run in the current step
  StepWeight weight_;
  StepNote note_;
  NotedStep noted_;
  // On a device, the steps whose note is not read yet, each with the collective that carries the note.
  std::deque<std::pair<std::int64_t, Work>> unread_;
  std::array<std::int64_t, 2> known_totals_{};  // the weights of the last two steps whose note was read, on a device
  std::vector<int> missing_;                    // the number of gradients that each bucket still waits for
  std::vector<Work> works_;                     // the current step's works
  // On a device, the works of the step that finished last, followed by the work that carries the step's weight. The
  // list is cleared when the weight is known.
  std::vector<Work> last_works_;
  std::int64_t total_weight_ = 0;
  std::size_t next_launched_ = 0;  // the index of the next bucket to launch
  std::size_t next_finished_ = 0;  // the index of the next bucket to finish
  trace::StepRecord record_;
  trace::StepRecord last_;
  std::chrono::nanoseconds in_calls_{};      // the time spent in the group's calls, before finish()
  std::chrono::nanoseconds in_last_call_{};  // the part of in_calls_ after the latest gradient
};

}  // namespace lockstep
