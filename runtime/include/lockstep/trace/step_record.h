// SPDX-License-Identifier: Apache-2.0
// StepRecord has the times of one step, each measured, not computed as a difference of runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep::trace {

using Time = std::chrono::steady_clock::time_point;

// The times of one bucket. All are of this rank's clock; on a device of the device's clock, which starts at
// StepRecord::begin.
struct BucketRecord {
  // The number of bytes that travel: the bucket's gradients, or what a communication hook makes of them.
  std::size_t bytes = 0;
  // The time when its last gradient was written.
  Time ready;
  // The start of its all-reduce, or on a device the time when it could start, because its turn had come.
  Time launched;
  // The time when the result was seen on the host, or on a device when it was there.
  Time finished;
  // The number of gradients of this step that were ready when the bucket was launched. It is less than
  // StepRecord::gradients_ready exactly if the bucket was launched before the end of backward: the proof of overlap, by
  // order.
  int gradients_ready = 0;
};

struct StepRecord {
  std::int64_t step = -1;  // counts synchronised steps from 0; -1 before the first
  Time begin;              // begin_step, always by the host's clock
  // The end of backward, as the Reducer sees it; without a gradient, the begin of finish_step.
  Time last_gradient_ready;
  // The return of finish_step; on a device the time when all results are there for later work in the stream.
  Time end;
  int gradients_ready = 0;  // gradients that this rank marked ready
  std::vector<BucketRecord> buckets;

  // The time after the last gradient that was spent in the group's calls, waiting for other ranks or reducing: what
  // training waited for after backward. On a device: the time that the compute stream waited there.
  std::chrono::nanoseconds waited{};
  // The time before the last gradient that was spent in the group's calls, publishing and reducing: communication
  // hidden by backward, for backends that the caller advances (shm, single). On a device: under_way.
  std::chrono::nanoseconds hidden{};
  // The time before the last gradient in which at least one bucket was launched and not yet finished: communication
  // hidden by backward, for backends that advance by themselves. It includes time in which nobody worked on the bucket.
  std::chrono::nanoseconds under_way{};
};

// Computes StepRecord::under_way from begin, last_gradient_ready and the buckets' times.
LOCKSTEP_API std::chrono::nanoseconds under_way_behind_backward(const StepRecord& record);

}  // namespace lockstep::trace
