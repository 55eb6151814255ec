// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/step_summary.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::trace {

void StepSummary::add(const StepRecord& record) {
  if (record.step <= last_step_) return;
  last_step_ = record.step;
  add_sample(waited_, record.waited);
  add_sample(hidden_, record.hidden);
  ++steps_;
}

void StepSummary::add_sample(Samples& samples, std::chrono::nanoseconds value) const {
  if (samples.window.size() < kWindow) {
    samples.window.push_back(value);
  } else {
    samples.window[static_cast<std::size_t>(steps_) % kWindow] = value;
  }
  samples.sum += value;
  samples.max = std::max(samples.max, value);
}

TimeStatistics StepSummary::statistics(const Samples& samples) const {
  if (steps_ == 0) return {};
  std::vector<std::chrono::nanoseconds> sorted = samples.window;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  std::chrono::nanoseconds median = *middle;
  if (sorted.size() % 2 == 0) median = (median + *std::max_element(sorted.begin(), middle)) / 2;
  return {median, samples.sum / steps_, samples.max};
}

std::string StepSummary::line() const {
  if (steps_ == 0) return "no step yet";
  return fmt::format("communication: {} waited, {} hidden", format_duration(waited().median),
                     format_duration(hidden().median));
}

std::string StepSummary::report() const {
  if (steps_ == 0) return "no step yet";
  const TimeStatistics after = waited();
  const TimeStatistics behind = hidden();
  return fmt::format(
      "{} steps, communication in each: {} waited (mean {}, longest {}), {} hidden by backward (mean {})", steps_,
      format_duration(after.median), format_duration(after.mean), format_duration(after.max),
      format_duration(behind.median), format_duration(behind.mean));
}

std::string format_left(std::chrono::nanoseconds left) {
  const auto whole = std::chrono::round<std::chrono::seconds>(left).count();
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string format_duration(std::chrono::nanoseconds duration) {
  const auto ns = static_cast<double>(duration.count());
  // The least duration has no opposite.
  if (ns < 0) return fmt::format("-{}", format_duration(-std::max(duration, -duration.max())));
  if (ns < 999.5) return fmt::format("{} ns", duration.count());
  if (ns < 999.95e3) return fmt::format("{:.1f} us", ns / 1e3);
  if (ns < 999.95e6) return fmt::format("{:.1f} ms", ns / 1e6);
  return fmt::format("{:.2f} s", ns / 1e9);
}

}  // namespace lockstep::trace
