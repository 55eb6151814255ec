// SPDX-License-Identifier: Apache-2.0
// StepMarks measures the times of a step on a device. StepMarks puts marks, which are timed events, into the compute
// stream, and reads the marks' times after the device has reached the marks. No call of StepMarks blocks the host.
//
// In the record of a step, the first time is the host's time at begin(); each other time is this first time plus the
// time that the device measured since the mark of begin(). The group, not StepMarks, puts the mark at the end of a
// collective (Work::end_mark).
//
// Threads: only the Reducer's thread calls the functions of StepMarks.
// Failure: throws DeviceError.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/comm/work.h"
#include "lockstep/device/device_runtime.h"
#include "lockstep/trace/step_record.h"

namespace lockstep {

class StepMarks {
 public:
  explicit StepMarks(DeviceId device);

  // Begins a step. `compute` is the stream in which gradients are written. Call begin(), then ready() and launched()
  // for each bucket, then backward_ended() and end().
  void begin(std::size_t buckets, StreamView compute);
  // Puts a mark into the compute stream after the work that writes the bucket's last gradient.
  void ready(std::size_t bucket);
  // Records that the bucket's all-reduce starts after the newest mark in the compute stream.
  void launched(std::size_t bucket);
  // Puts a mark into the compute stream after the kernels of backward. Buckets for which ready() was not called count
  // as ready at the mark of backward_ended().
  void backward_ended();
  // Puts the step's last mark into the compute stream, after the stream's wait for all buckets. `works` has a work for
  // each bucket. `record` has all fields of the step's record except the times.
  void end(trace::StepRecord record, std::span<const Work> works);

  // Returns the record of the last step whose marks have all been reached.
  const trace::StepRecord& last();

 private:
  struct Step {
    trace::StepRecord record;
    std::vector<std::shared_ptr<void>> marks;  // the marks, by the indices below
    std::vector<std::size_t> launch;           // the mark after which each bucket's all-reduce starts
    std::vector<char> is_ready;                // whether each bucket's own mark was set
    std::vector<Work> works;                   // the work of each bucket
  };
  // The indices of a step's marks: three fixed marks, followed by a mark for each bucket, which ready() puts.
  enum : std::size_t { kBegin, kBackwardEnd, kEnd, kBuckets };

  void mark(std::size_t index);
  void resolve();
  trace::StepRecord times(const Step& step) const;

  // The largest number of steps whose times are not known yet. Fewer steps are pending in practice, because limits of
  // the device keep the host at most a few steps ahead of the device. If more than kMostPending steps wait for their
  // times, the oldest step is dropped, and last() never returns the dropped step.
  static constexpr std::size_t kMostPending = 64;

  DeviceRuntime& runtime_;
  DeviceId device_;
  StreamView compute_;
  Step now_;
  std::size_t last_mark_ = kBegin;
  std::deque<Step> pending_;
  trace::StepRecord last_;
};

}  // namespace lockstep
