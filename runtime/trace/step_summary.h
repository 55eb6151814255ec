// SPDX-License-Identifier: Apache-2.0
// The time that many steps waited for communication, and that ran behind backward: for the progress line and the end
// summary.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/trace/step_record.h"
#include "runtime/base/internal_api.h"

namespace lockstep::trace {

// A time per step. The first step's is part of it: it warms up, so look at the median.
struct TimeStatistics {
  std::chrono::nanoseconds median{};  // of the last StepSummary::kWindow steps
  std::chrono::nanoseconds mean{};    // of all steps
  std::chrono::nanoseconds max{};     // of all steps
};

// Threads: one at a time. Bounded memory, however many steps.
class LOCKSTEP_INTERNAL_API StepSummary {
 public:
  static constexpr std::size_t kWindow = 1024;

  // Counts none up to step `last_step`.
  explicit StepSummary(std::int64_t last_step = -1) : last_step_(last_step) {}

  // A record that was added already (its step number is not beyond the last one's) or that is of no step (-1) is not
  // counted, so that a loop with micro-batches may add last_step() after each.
  void add(const StepRecord& record);

  std::int64_t steps() const { return steps_; }
  TimeStatistics waited() const { return statistics(waited_); }  // StepRecord::waited
  TimeStatistics hidden() const { return statistics(hidden_); }  // StepRecord::hidden

  // Medians, for a progress line: "communication: 0.7 ms waited, 11.4 ms hidden". "no step yet" without
  // one.
  std::string line() const;
  // For the end of a run: "200 steps, communication in each: 0.7 ms waited (mean 0.8 ms, longest 3.1 ms), 11.4 ms
  // hidden behind backward (mean 11.6 ms)".
  std::string report() const;

 private:
  struct Samples {
    std::vector<std::chrono::nanoseconds> window;  // the last kWindow of them; a ring once it is full
    std::chrono::nanoseconds sum{};
    std::chrono::nanoseconds max{};
  };
  void add_sample(Samples& samples, std::chrono::nanoseconds value) const;
  TimeStatistics statistics(const Samples& samples) const;

  std::int64_t steps_ = 0;
  std::int64_t last_step_;
  Samples waited_;
  Samples hidden_;
};

// A duration as people read it: "0.7 us", "11.4 ms", "2.31 s".
std::string format_duration(std::chrono::nanoseconds duration);
// The time left, as a bar shows it: "0:47", "3:20:07".
std::string format_left(std::chrono::nanoseconds left);

}  // namespace lockstep::trace
