// SPDX-License-Identifier: Apache-2.0
// The queue of a synchronised step's buckets: launches them strictly in index order, and records their times.
//
// On a device the host only launches: a bucket's all-reduce follows the work that is in the compute stream at its
// launch, and the compute stream follows the all-reduce from finish() on.
//
// With a communication hook a small all-reduce at the step's begin carries weight and note, and the hook gets the
// buckets. On a device finish() takes the hook's results, and only the first two steps wait for the weight on the host.
//
// The queue knows neither names nor micro-batches; the Reducer does.
// Threads: the Reducer's.
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
  // `memory`, `clock`, `hook` and `finite` outlive it; the last two may be null. `memory` holds the buckets of every
  // plan that begin() gets; on a device with a hook also a word for the step's weight, at `total_at`. Of buckets whose
  // first parameter is below `sharded` each rank gets only its part of the sum.
  BucketQueue(std::shared_ptr<ProcessGroup> group, const StepClock& clock, const GradientMemory& memory,
              std::size_t total_at, BucketHook* hook, FiniteCheck* finite, int sharded = 0);

  // Starts the clock's step. `plan` outlives it; `note` travels with bucket 0, or, with a hook, before it. On a device
  // the call waits, at most the group's timeout, until the step before the last has finished its bucket 0, and reads
  // its note.
  void begin(const BucketPlan& plan, const StepWeight& weight, const StepNote& note);
  // Notes that one more gradient of `bucket` is final. Launches every bucket that is full and has its turn, and
  // advances the running collectives.
  void gradient_ready(int bucket);
  // Launches the remaining buckets and waits for all, at most the group's timeout; on a device the compute stream
  // waits, and the host does not.
  void finish();
  // The sum of all ranks' weights in the step that finished last, or 1 if the step divided nothing; 0 before the first.
  // On a device it waits for the step on the host, at most the group's timeout.
  std::int64_t total_weight();
  // See Reducer::is_step_over().
  bool is_step_over() const;

  // The note: on the CPU of the step that finished last, on a device of the one before the last that began.
  const NotedStep& noted() const { return noted_; }

  // Forgets the step that has begun. Only with a single rank, where no other rank waits for its buckets. On a device
  // the compute stream waits for the collectives that were launched.
  void drop();

  // Whether some bucket was launched and its result has not been seen.
  bool under_way() const { return next_finished_ < next_launched_; }
  // Whether a step has begun, some collective of it was launched, and finish() has not returned: the other ranks wait
  // for the rest of it.
  bool is_open() const { return plan_ != nullptr && (next_launched_ > 0 || hook_ != nullptr); }
  // The record of the step that finished last; on a device of the last one that is known to have ended there.
  const trace::StepRecord& last() const { return marks_ ? marks_->last() : last_; }

 private:
  void read_note_before_last();
  // Starts, and waits for, the collective that carries the step's weight and note. Only with a hook.
  void announce();
  void await_announcement();
  bool goes_to_hook(std::size_t bucket) const { return hook_ != nullptr && hook_->takes(plan_->buckets[bucket]); }
  // The collective that carries the current step's weight and note.
  const Work& told() const { return hook_ != nullptr ? announcement_ : works_.front(); }
  // The divisor of the step whose told() is `told`.
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
  std::unique_ptr<StepMarks> marks_;  // null on the CPU
  const BucketPlan* plan_ = nullptr;  // the current step's plan, owned by the Reducer; null between steps
  std::int64_t* total_on_device_;     // the step's weight, on a device with a hook; otherwise null
  BucketHook* hook_;
  FiniteCheck* finite_;
  const int sharded_;
  Work announcement_;          // the current step's, with a hook
  bool is_announced_ = false;  // whether all ranks have the announcement
  StepWeight weight_;
  StepNote note_;
  NotedStep noted_;
  // On a device: steps whose note is not read yet, with the collective that carries it.
  std::deque<std::pair<std::int64_t, Work>> unread_;
  std::array<std::int64_t, 2> known_totals_{};  // on a device: the weights of the last steps whose note was read
  std::vector<int> missing_;                    // gradients that each bucket still waits for
  std::vector<Work> works_;                     // the current step's works
  // On a device: the last finished step's works, and after them the one that carries its weight, until that is known.
  std::vector<Work> last_works_;
  std::int64_t total_weight_ = 0;
  std::size_t next_launched_ = 0;  // buckets before it were launched
  std::size_t next_finished_ = 0;  // buckets before it are done
  trace::StepRecord record_;
  trace::StepRecord last_;
  std::chrono::nanoseconds in_calls_{};      // spent in the group's calls, before finish()
  std::chrono::nanoseconds in_last_call_{};  // the part of in_calls_ after the gradient that may be the last
};

}  // namespace lockstep
