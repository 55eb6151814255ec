// SPDX-License-Identifier: Apache-2.0
// The times of one step, by measurement, never by difference of runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep::trace {

using Time = std::chrono::steady_clock::time_point;

// One bucket's way. All times of this rank's clock; on a device of its device's, which starts at StepRecord::begin.
struct BucketRecord {
  std::size_t bytes = 0;  // what travels: its gradients, or what a communication hook makes of them
  Time ready;             // its last gradient was written
  Time launched;          // its all-reduce was started, or on a device could start: its turn had come
  Time finished;          // the result was seen here, or on a device was there
  // Gradients of this step that were ready when it was launched. Less than StepRecord::gradients_ready exactly if it
  // was launched before backward's end: the proof of overlap, by order.
  int gradients_ready = 0;
};

struct StepRecord {
  std::int64_t step = -1;    // counts synchronised steps from 0; -1 before the first
  Time begin;                // begin_step, always of the host's clock
  Time last_gradient_ready;  // backward's end, as the reducer sees it; without a gradient, finish_step's begin
  Time end;                  // finish_step returned; on a device: all results are there for what comes after it
  int gradients_ready = 0;   // gradients that this rank marked ready
  std::vector<BucketRecord> buckets;

  // Time after the last gradient spent in the group's calls, waiting for other ranks or reducing: what training waited
  // for after backward. On a device: time in which the compute stream waited there.
  std::chrono::nanoseconds waited{};
  // Time before the last gradient spent in the group's calls, publishing and reducing: the communication that ran
  // behind backward, for backends that the caller progresses (shm, single). On a device: under_way.
  std::chrono::nanoseconds hidden{};
  // Time before the last gradient in which at least one bucket was launched and not yet finished: what ran behind
  // backward for backends that progress by themselves. Includes time in which nobody worked on it.
  std::chrono::nanoseconds under_way{};
};

// StepRecord::under_way, from begin, last_gradient_ready and the buckets' times.
LOCKSTEP_API std::chrono::nanoseconds under_way_behind_backward(const StepRecord& record);

}  // namespace lockstep::trace
