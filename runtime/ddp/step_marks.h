// SPDX-License-Identifier: Apache-2.0
// The times of a step on a device, whose events the host does not wait for: timed marks in the streams, read after they
// have been reached. No call here blocks the host.
//
// All times are device time: a record starts at the host's time of begin(), and every other time is that plus the time
// that the device counted since. A collective's end is marked by its group (Work::end_mark).
//
// Threads: the Reducer's.
// Failure: DeviceError.
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

  // Call these in this order, for each step. `compute` is the stream in which gradients are written.
  void begin(std::size_t buckets, StreamView compute);
  // Marks that the bucket's last gradient is in the compute stream.
  void ready(std::size_t bucket);
  // Notes that the bucket's all-reduce was started after the last mark.
  void launched(std::size_t bucket);
  // Marks the end of backward's kernels in the compute stream. Buckets that were not ready are ready from here on.
  void backward_ended();
  // Marks that the compute stream waits for all buckets: `works`, one for each. `record` has all but the times.
  void end(trace::StepRecord record, std::span<const Work> works);

  // The record of the last step whose marks have all been reached.
  const trace::StepRecord& last();

 private:
  struct Step {
    trace::StepRecord record;
    std::vector<std::shared_ptr<void>> marks;  // see the indices below
    std::vector<std::size_t> launch;           // by bucket: the mark after which its all-reduce starts
    std::vector<char> is_ready;                // by bucket: whether its own mark was set
    std::vector<Work> works;                   // by bucket
  };
  // The marks of a step: three, then one for each bucket when it was ready.
  enum : std::size_t { kBegin, kBackwardEnd, kEnd, kBuckets };

  void mark(std::size_t index);
  void resolve();
  trace::StepRecord times(const Step& step) const;

  // The number of steps of which nothing is known yet. The host is a few steps ahead at most, by the device's own
  // limits; above this number the oldest is dropped, and last() never returns it.
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
