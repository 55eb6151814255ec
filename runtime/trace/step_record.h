// What happened in one step, by measurement, never by difference of runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace lockstep::trace {

using Time = std::chrono::steady_clock::time_point;

// One bucket's way. All times of this rank's clock.
struct BucketRecord {
  std::size_t bytes = 0;
  Time ready;     // its last gradient was written
  Time launched;  // its all-reduce was started: its turn had come
  Time finished;  // the result was seen here
};

struct StepRecord {
  std::int64_t step = -1;           // counts synchronised steps from 0; -1 before the first
  Time begin;                       // begin_step
  Time last_gradient_ready;         // backward's end, as the reducer sees it
  Time end;                         // finish_step returned
  std::vector<BucketRecord> buckets;

  // Time in finish_step spent waiting for other ranks or reducing: what training waited for after backward.
  std::chrono::nanoseconds waited{};
  // Time inside collectives before backward's end: what ran behind it.
  std::chrono::nanoseconds hidden{};
};

}  // namespace lockstep::trace
