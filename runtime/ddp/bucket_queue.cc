// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/bucket_queue.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "runtime/ddp/with_step_context.h"
#include "runtime/trace/process_trace.h"

namespace lockstep {
namespace {

// On a device, the host reads the StepNote of a step when the step kNoteDelay steps later begins. kNoteDelay is equal
// on all ranks, and is so large that the host hardly ever waits for a StepNote.
constexpr std::size_t kNoteDelay = 2;

trace::Time now() { return trace::Time::clock::now(); }

}  // namespace

BucketQueue::BucketQueue(std::shared_ptr<ProcessGroup> group, const StepClock& clock, const GradientMemory& memory,
                         std::size_t total_at, BucketHook* hook, FiniteCheck* finite, int sharded)
    : group_(std::move(group)),
      clock_(clock),
      memory_(memory),
      marks_(memory.device() ? std::make_unique<StepMarks>(group_->device()) : nullptr),
      total_on_device_(marks_ && hook != nullptr ? reinterpret_cast<std::int64_t*>(memory.at(total_at)) : nullptr),
      hook_(hook),
      finite_(finite),
      sharded_(sharded) {}

template <typename Call>
auto BucketQueue::at_bucket(std::size_t bucket, Call call) const {
  const auto place = [&] {
    const Bucket& it = plan_->buckets[bucket];
    return StepContext{
        record_.step, static_cast<int>(bucket),
        fmt::format("bucket {} of {} ({} {}{})", bucket, plan_->buckets.size(), it.count, name_of(it.dtype),
                    goes_to_hook(bucket) ? fmt::format(", hook '{}'", hook_->name()) : "")};
  };
  clock_.mark_group(static_cast<int>(bucket));
  return with_step_context(place, call);
}

template <typename Call>
auto BucketQueue::at_announcement(Call call) const {
  return with_step_context([&] { return StepContext{record_.step, -1, "the weight of the step"}; }, call);
}

void BucketQueue::begin(const BucketPlan& plan, const StepWeight& weight, const StepNote& note) {
  read_note_before_last();
  plan_ = &plan;
  weight_ = weight;
  note_ = note;
  missing_.clear();
  record_.buckets.clear();
  for (const Bucket& bucket : plan.buckets) {
    missing_.push_back(static_cast<int>(bucket.parameters.size()));
    record_.buckets.push_back({.bytes = static_cast<std::size_t>(bucket.count) * size_of(bucket.dtype),
                               .ready = {},
                               .launched = {},
                               .finished = {},
                               .gradients_ready = 0});
  }
  works_.assign(plan.buckets.size(), Work());
  next_launched_ = 0;
  next_finished_ = 0;
  record_.step = clock_.step();
  record_.begin = now();
  record_.gradients_ready = 0;
  in_calls_ = {};
  in_last_call_ = {};
  if (marks_) marks_->begin(plan.buckets.size(), memory_.stream());
  if (finite_ != nullptr) finite_->begin(plan, record_.step);
  if (hook_ != nullptr) announce();
}

void BucketQueue::announce() {
  const ReductionOptions options{.weight = weight_.own, .total_on_device = total_on_device_, .note = fields_of(note_)};
  const BufferView nothing(nullptr, 0, DType::f32, group_->device());
  is_announced_ = false;
  announcement_ = at_announcement([&] { return group_->all_reduce(nothing, options); });
}

// Waits for the all-reduce that announces the step's weight. On the CPU await_announcement() blocks, so that all ranks
// start the program's collectives in one order. On a device all ranks start their collectives in one order even without
// blocking, and the host needs a weight only to compute the hook's scale. The hook's scale is computed from the larger
// weight of two steps, the last steps whose StepNote the host has read. Because the larger of two weights determines
// the scale, float16 does not overflow in a full batch that follows a short batch.
void BucketQueue::await_announcement() {
  if (std::exchange(is_announced_, true)) return;
  std::int64_t total = std::max(known_totals_[0], known_totals_[1]);
  if (!marks_ || (hook_->is_scaled() && noted_.step < 0)) {
    at_announcement([&] { announcement_.wait(); });
    total = announcement_.total_weight();
  }
  hook_->begin(*plan_, record_.step, weight_, total, total_on_device_);
}

BufferView BucketQueue::buffer_of(std::size_t bucket) const {
  const Bucket& it = plan_->buckets[bucket];
  return {memory_.at(it.offset), it.count, it.dtype, group_->device()};
}

void BucketQueue::read_note_before_last() {
  if (unread_.size() < kNoteDelay) return;
  const std::int64_t step = unread_.front().first;
  const Work& work = unread_.front().second;  // in clang 14 a lambda can't capture a structured binding
  with_step_context([&] { return StepContext{step, -1, "note of the step"}; }, [&] { work.wait(); });
  noted_ = {step, note_of_all(work)};
  known_totals_ = {work.total_weight(), known_totals_[0]};
  unread_.pop_front();
}

void BucketQueue::gradient_ready(int bucket) {
  const auto index = static_cast<std::size_t>(bucket);
  if (marks_) {
    ++record_.gradients_ready;
    if (--missing_[index] > 0) return;
    marks_->ready(index);
    return launch_full();
  }
  record_.last_gradient_ready = now();
  ++record_.gradients_ready;
  in_last_call_ = {};
  // A full bucket waits until all earlier buckets are launched, because every rank must start its collectives in the
  // plan's order, in whatever order the gradients become ready.
  if (--missing_[index] == 0) {
    record_.buckets[index].ready = record_.last_gradient_ready;
    launch_full();
  }
  if (!under_way()) return;
  see_finished();
  in_last_call_ = now() - record_.last_gradient_ready;
  in_calls_ += in_last_call_;
}

void BucketQueue::launch_full() {
  while (next_launched_ < missing_.size() && missing_[next_launched_] == 0) launch(next_launched_);
}

void BucketQueue::launch(std::size_t bucket) {
  // Call look() before the bucket's collective: the collective overwrites the bucket, so a NaN in the bucket could then
  // come from any rank.
  if (finite_ != nullptr) finite_->look(bucket, buffer_of(bucket));
  if (hook_ != nullptr) await_announcement();
  if (!marks_) record_.buckets[bucket].launched = now();
  record_.buckets[bucket].gradients_ready = record_.gradients_ready;
  // `part` is the number that this rank contributes to the divisor of the summed gradients. The divisor is the sum of
  // all ranks' parts, which is 1 for Loss::sum.
  const std::int64_t part = weight_.is_mean ? weight_.own : group_->rank() == 0;
  ReductionOptions options{.op = ReduceOp::sum,
                           .weight = part,
                           .unit = weight_.is_mean ? weight_.unit : 1,
                           .zero_if_weightless = marks_ != nullptr};
  if (bucket == 0 && hook_ == nullptr) options.note = fields_of(note_);
  works_[bucket] = at_bucket(bucket, [&] {
    const BufferView buffer = buffer_of(bucket);
    if (!goes_to_hook(bucket)) return reduce(bucket, options);
    const HookedBucket sent = hook_->start(bucket, buffer);
    record_.buckets[bucket].bytes = sent.bytes.value_or(buffer.bytes());
    return sent.work;
  });
  ++next_launched_;
  if (marks_) marks_->launched(bucket);
}

Work BucketQueue::reduce(std::size_t bucket, const ReductionOptions& options) {
  const BufferView whole = buffer_of(bucket);
  if (plan_->buckets[bucket].parameters.front() >= sharded_) return group_->all_reduce(whole, options);
  return group_->reduce_scatter(whole, part_of(whole, group_->rank(), group_->size()), options);
}

// Completes the launched buckets whose work is done, in launch order, up to the first bucket whose work is not done.
void BucketQueue::see_finished() {
  at_bucket(next_finished_, [&] { group_->progress(); });
  while (under_way() && at_bucket(next_finished_, [&] { return is_done(next_finished_); })) {
    complete(next_finished_);
  }
}

bool BucketQueue::is_done(std::size_t bucket) const {
  return goes_to_hook(bucket) ? hook_->is_done(bucket, works_[bucket]) : works_[bucket].done();
}

void BucketQueue::complete(std::size_t bucket) {
  if (goes_to_hook(bucket)) at_bucket(bucket, [&] { hook_->finish(bucket, buffer_of(bucket)); });
  record_.buckets[bucket].finished = now();
  ++next_finished_;
}

void BucketQueue::finish() {
  if (marks_) return finish_on_device();
  const trace::Time begin = now();
  if (record_.gradients_ready == 0) record_.last_gradient_ready = begin;
  for (std::size_t bucket = next_launched_; bucket < missing_.size(); ++bucket) {
    if (missing_[bucket] != 0) record_.buckets[bucket].ready = begin;
    missing_[bucket] = 0;
  }
  launch_full();
  await_all();
  // Read the weight and the StepNote from told() before clearing works_: told() may return an element of works_.
  total_weight_ = total_of(told());
  noted_ = {record_.step, note_of_all(told())};
  works_.clear();
  plan_ = nullptr;
  clock_.mark_group();  // later collectives belong to no bucket
  close_record(begin);
}

// Waits for all buckets with one deadline for the whole step, because time limits per bucket would add up.
void BucketQueue::await_all() {
  const Deadline deadline = Deadline::after(group_->timeout());
  while (under_way()) {
    const Work& work = works_[next_finished_];
    at_bucket(next_finished_, [&] {
      goes_to_hook(next_finished_) ? hook_->wait(next_finished_, work, deadline) : work.wait(deadline);
    });
    complete(next_finished_);
  }
}

void BucketQueue::finish_on_device() {
  marks_->backward_ended();
  std::fill(missing_.begin(), missing_.end(), 0);
  launch_full();
  wait_in_stream();
  for (std::size_t bucket = 0; bucket < next_launched_; ++bucket) {
    if (goes_to_hook(bucket)) at_bucket(bucket, [&] { hook_->finish(bucket, buffer_of(bucket)); });
  }
  const Work carrier = told();
  unread_.emplace_back(record_.step, carrier);
  marks_->end(record_, works_);
  if (finite_ != nullptr) finite_->end();
  last_works_ = std::move(works_);
  last_works_.push_back(carrier);
  plan_ = nullptr;
  clock_.mark_group();
}

// Makes the compute stream wait for the last bucket. All other buckets end before the last bucket, because the group
// runs its collectives in the order in which the host starts the collectives. With a hook, the compute stream waits for
// every bucket, because a hook's collectives may belong to several groups.
void BucketQueue::wait_in_stream() {
  const std::size_t first = hook_ != nullptr || next_launched_ == 0 ? 0 : next_launched_ - 1;
  for (std::size_t bucket = first; bucket < next_launched_; ++bucket) {
    at_bucket(bucket, [&] { works_[bucket].wait_on(memory_.stream()); });
  }
  if (hook_ != nullptr) at_announcement([&] { announcement_.wait_on(memory_.stream()); });
}

std::int64_t BucketQueue::total_weight() {
  if (!last_works_.empty()) {
    const Deadline deadline = Deadline::after(group_->timeout());
    for (const Work& work : last_works_) {
      with_step_context(
          [&] {
            return StepContext{record_.step, -1, fmt::format("step {}, total_weight", record_.step)};
          },
          [&] { work.wait(deadline); });
    }
    total_weight_ = total_of(last_works_.back());
    last_works_.clear();
  }
  return total_weight_;
}

bool BucketQueue::is_step_over() const {
  try {
    return std::ranges::all_of(last_works_, [](const Work& work) { return work.done(); });
  } catch (const Error&) {
    return false;  // the group has failed, and the other ranks get the cause
  }
}

void BucketQueue::drop() {
  if (marks_ && plan_ != nullptr) wait_in_stream();
  works_.clear();
  announcement_ = {};
  if (hook_ != nullptr) hook_->drop();
  plan_ = nullptr;
  next_launched_ = 0;
  next_finished_ = 0;
}

void BucketQueue::close_record(trace::Time finish_begin) {
  record_.end = now();
  record_.waited = in_last_call_ + (record_.end - finish_begin);
  record_.hidden = in_calls_ - in_last_call_;
  record_.under_way = trace::under_way_behind_backward(record_);
  trace::keep_step(record_, false);
  std::swap(record_, last_);
}

}  // namespace lockstep
