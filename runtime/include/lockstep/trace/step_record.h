// SPDX-License-Identifier: Apache-2.0
// StepRecord has the times of one step. Each time in a StepRecord is measured within the step, and not computed as a
// difference between runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep::trace {

using Time = std::chrono::steady_clock::time_point;

// BucketRecord has the times of one bucket of gradients, by this rank's clock. On a device, the times of a BucketRecord
// are measured by the device's clock, counted from StepRecord::begin.
struct BucketRecord {
  // The number of bytes that are sent: the bytes of the bucket's gradients, or the bytes that a communication hook
  // sends instead.
  std::size_t bytes = 0;
  // The time when the bucket's last gradient was written.
  Time ready;
  // The time when the bucket's all-reduce started. On a device `launched` is the time when the all-reduce could start,
  // because all earlier buckets had been launched.
  Time launched;
  // The time when the host saw the result of the all-reduce. On a device `finished` is the time when the device had
  // the result.
  Time finished;
  // The number of this step's gradients that were ready when the bucket's all-reduce was launched. `gradients_ready` is
  // less than StepRecord::gradients_ready if and only if the bucket was launched before the end of backward, so that
  // communication and backward overlapped.
  int gradients_ready = 0;
};

struct StepRecord {
  std::int64_t step = -1;  // number of the synchronised step, from 0; -1 before the first step
  Time begin;              // the time of begin_step, always by the host's clock
  // The time when the last gradient was marked ready, which is the end of backward. In a step without gradients,
  // `last_gradient_ready` is the time when finish_step() began.
  Time last_gradient_ready;
  // The time when finish_step() returned. On a device `end` is the time when all results were ready for later work in
  // the stream.
  Time end;
  int gradients_ready = 0;  // number of gradients that this rank marked ready
  std::vector<BucketRecord> buckets;

  // The time, after the last gradient was ready, that the group's calls spent on waiting for other ranks and on
  // reducing; during this time no backward ran. On a device `waited` is the time that the device's compute
  // stream waited.
  std::chrono::nanoseconds waited{};
  // The time, before the last gradient was ready, that the group's calls spent on publishing this rank's data and on
  // reducing. For backends that work only inside calls of the program's thread (shm, single), `hidden` is the
  // communication time hidden by backward. On a device `hidden` equals `under_way`.
  std::chrono::nanoseconds hidden{};
  // The time before the last gradient was ready in which at least one bucket was launched and not yet finished. For
  // backends that work outside of the program's calls, such as in threads of their own, `under_way` is the
  // communication time hidden by backward. `under_way` includes time in which the backend did no work for the
  // launched bucket.
  std::chrono::nanoseconds under_way{};
};

// Returns the value of StepRecord::under_way, computed from the record's `begin`, `last_gradient_ready` and `buckets`.
LOCKSTEP_API std::chrono::nanoseconds under_way_behind_backward(const StepRecord& record);

}  // namespace lockstep::trace
