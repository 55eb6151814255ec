// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/step_marks.h"

#include "runtime/trace/process_trace.h"

namespace lockstep {

StepMarks::StepMarks(DeviceId device) : runtime_(device_runtime(device.kind)), device_(device) {}

void StepMarks::begin(std::size_t buckets, StreamView compute) {
  resolve();
  while (now_.marks.size() < kBuckets + buckets) now_.marks.push_back(runtime_.create_event(device_, true));
  now_.launch.assign(buckets, kBegin);
  now_.is_ready.assign(buckets, 0);
  compute_ = compute;
  mark(kBegin);
}

void StepMarks::mark(std::size_t index) {
  runtime_.record(now_.marks[index].get(), compute_);
  last_mark_ = index;
}

void StepMarks::ready(std::size_t bucket) {
  now_.is_ready[bucket] = 1;
  mark(kBuckets + bucket);
}

void StepMarks::launched(std::size_t bucket) { now_.launch[bucket] = last_mark_; }

void StepMarks::backward_ended() { mark(kBackwardEnd); }

void StepMarks::end(trace::StepRecord record, std::span<const Work> works) {
  mark(kEnd);
  now_.record = std::move(record);
  now_.works.assign(works.begin(), works.end());
  pending_.push_back(std::move(now_));
  now_ = {};
  if (pending_.size() > kMostPending) pending_.pop_front();
}

trace::StepRecord StepMarks::times(const Step& step) const {
  trace::StepRecord record = step.record;
  const auto at = [&](void* mark) { return record.begin + runtime_.elapsed(step.marks[kBegin].get(), mark); };
  const auto time_of = [&](std::size_t mark) { return at(step.marks[mark].get()); };
  record.last_gradient_ready = time_of(kBackwardEnd);
  record.end = time_of(kEnd);
  for (std::size_t bucket = 0; bucket < step.launch.size(); ++bucket) {
    trace::BucketRecord& it = record.buckets[bucket];
    it.ready = step.is_ready[bucket] ? time_of(kBuckets + bucket) : record.last_gradient_ready;
    it.launched = time_of(step.launch[bucket]);
    void* const end = step.works[bucket].end_mark();
    it.finished = end == nullptr ? it.launched : at(end);  // a Work that a hook makes may have no mark
  }
  record.waited = record.end - record.last_gradient_ready;
  record.under_way = trace::under_way_behind_backward(record);
  record.hidden = record.under_way;
  return record;
}

void StepMarks::resolve() {
  // When the device has reached a step's last mark, kEnd, all marks of the step are reached, because the compute stream
  // waits for every bucket before kEnd.
  while (!pending_.empty() && runtime_.reached(pending_.front().marks[kEnd].get())) {
    last_ = times(pending_.front());
    trace::keep_step(last_, true);
    pending_.pop_front();
  }
}

const trace::StepRecord& StepMarks::last() {
  resolve();
  return last_;
}

}  // namespace lockstep
