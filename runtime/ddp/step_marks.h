// SPDX-License-Identifier: Apache-2.0
// StepMarks measures the times of a step on a device. StepMarks puts timed marks into the streams, and reads the marks
// after the device has reached them. No call of StepMarks blocks the host.
//
// All times are device times: a record starts at the host's time of begin(), and every other time is the start plus the
// time that the device counted since. The group marks the end of a collective (Work::end_mark).
//
// Threads: only the Reducer's thread calls this class.
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
  // Marks that the bucket's last gradient is in the compute stream.
  void ready(std::size_t bucket);
  // Notes that the bucket's all-reduce was started after the last mark.
  void launched(std::size_t bucket);
  // Marks the end of backward's kernels in the compute stream. Buckets that were not ready are ready from this mark on.
  void backward_ended();
  // Marks that the compute stream waits for all buckets. `works` has a work for each bucket; `record` has everything
  // except the times.
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
  // The indices of a step's marks: three fixed marks, then a mark for each bucket, set when the bucket is ready.
  enum : std::size_t { kBegin, kBackwardEnd, kEnd, kBuckets };

  void mark(std::size_t index);
  void resolve();
  trace::StepRecord times(const Step& step) const;

  // The largest number of steps whose times are not known yet. The device's own limits keep the host at most a few
  // steps ahead. Above kMostPending the oldest step is dropped, and last() never returns the dropped step.
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
