// SPDX-License-Identifier: Apache-2.0
// BucketQueue launches the buckets of a synchronised step strictly in index order, and records each bucket's times.
//
// On a device the host only launches buckets. A bucket's all-reduce runs after the work that is in the compute stream
// at the launch. BucketQueue::finish() makes the compute stream wait for the all-reduces.
//
// If there is a communication hook, the hook exchanges the buckets of gradients. With a hook, each step begins with a
// small all-reduce, which sums the ranks' weights and combines the ranks' StepNotes. On a device finish() writes the
// hook's results to the buckets, and the host waits for a step's weight only in the first two steps.
//
// The Reducer, not the BucketQueue, knows the parameters' names and the micro-batches.
// Threads: only the Reducer's thread calls the functions of BucketQueue.
// Failure: the functions throw the group's errors; each error's message begins with the step and the bucket.
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
  // the buckets of every plan that begin() gets. On a device with a hook, `memory` also has room for the step's weight,
  // an int64, at offset `total_at`. If the index of a bucket's first parameter is below `sharded`, each rank gets only
  // its part of the bucket's sum.
  BucketQueue(std::shared_ptr<ProcessGroup> group, const StepClock& clock, const GradientMemory& memory,
              std::size_t total_at, BucketHook* hook, FiniteCheck* finite, int sharded = 0);

  // Starts the current step of the clock. `plan` must outlive the step. `note` travels to the other ranks with bucket 0
  // or, with a hook, before bucket 0. On a device begin() of step n waits, at most the group's timeout, for the
  // StepNote of step n - 2, and reads this StepNote.
  void begin(const BucketPlan& plan, const StepWeight& weight, const StepNote& note);
  // Records that one more gradient of `bucket` is final. Launches the next buckets in index order while their gradients
  // are all final, and advances the running collectives.
  void gradient_ready(int bucket);
  // Launches the remaining buckets and waits for all buckets, at most the group's timeout. On a device the compute
  // stream waits for the buckets, and the host does not wait.
  void finish();
  // Returns the sum of all ranks' weights in the step that finished last, or 1 if the step did not divide its
  // gradients. Returns 0 before the first step. On a device total_weight() blocks the host until the collectives of the
  // last finished step are done, at most for the group's timeout.
  std::int64_t total_weight();
  // See Reducer::is_step_over().
  bool is_step_over() const;

  // Returns the newest StepNote that the host has read, combined over all ranks. On the CPU noted() is the note of the
  // step that finished last. On a device noted() is the note of step n - 2, where n is the step that began last.
  const NotedStep& noted() const { return noted_; }

  // Forgets the step that has begun. On a device drop() makes the compute stream wait for the collectives that were
  // launched. REQUIRES: the group has a single rank or has failed, so that no other rank waits for the step's buckets.
  void drop();

  // Returns true if a bucket was launched for which complete() has not been called yet.
  bool under_way() const { return next_finished_ < next_launched_; }
  // Returns true if a step has begun and launched a collective, and finish() has not returned. While is_open() is true,
  // other ranks wait for the rest of the step.
  bool is_open() const { return plan_ != nullptr && (next_launched_ > 0 || hook_ != nullptr); }
  // Returns the record of the step that finished last. On a device, last() returns the record of the last step that the
  // device is known to have finished.
  const trace::StepRecord& last() const { return marks_ ? marks_->last() : last_; }

 private:
  void read_note_before_last();
  // Starts the collective that carries the step's weight and StepNote. REQUIRES: a hook.
  void announce();
  void await_announcement();
  bool goes_to_hook(std::size_t bucket) const { return hook_ != nullptr && hook_->takes(plan_->buckets[bucket]); }
  // Returns the Work of the collective that carries the current step's weight and StepNote.
  const Work& told() const { return hook_ != nullptr ? announcement_ : works_.front(); }
  // Returns the divisor of the gradients in a step; `told` is the collective that carries the step's weight.
  std::int64_t total_of(const Work& told) const {
    return hook_ != nullptr && !weight_.is_mean ? 1 : told.total_weight();
  }
  BufferView buffer_of(std::size_t bucket) const;
  Work reduce(std::size_t bucket, const ReductionOptions& options);
  bool is_done(std::size_t bucket) const;
  // Records that a bucket's work is done, and writes the hook's result, if there is a hook, to the bucket.
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
  // The steps on a device whose StepNote has not been read yet, each with the collective that carries the StepNote.
  std::deque<std::pair<std::int64_t, Work>> unread_;
  std::array<std::int64_t, 2> known_totals_{};  // the weights of the last two steps whose note was read, on a device
  std::vector<int> missing_;                    // the number of gradients that each bucket still waits for
  std::vector<Work> works_;                     // the current step's works
  // On a device, the Work of each bucket in the step that finished last, followed by the Work that carries the step's
  // weight. total_weight() clears last_works_ after reading the step's weight.
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
