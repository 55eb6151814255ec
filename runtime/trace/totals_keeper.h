// SPDX-License-Identifier: Apache-2.0
// Adds up a rank's totals (rank_totals.h) as events come. Times are ns of the rank's clock.
//
// Threads: any. Spans add to a number without a lock; the end of a step takes one for some twenty words.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "lockstep/trace/step_record.h"
#include "runtime/base/mutex.h"
#include "runtime/trace/rank_totals.h"

namespace lockstep::trace {

class TotalsKeeper {
 public:
  // A span of the library begins on any thread.
  void begin_span(std::int64_t now) noexcept;
  // And ends; `own`: without those of the library within it.
  void end_span(SpanKind kind, std::int64_t own, std::int64_t now) noexcept;
  void end_step(const StepRecord& record, bool on_device) noexcept EXCLUDES(mutex_);
  void add_batch(std::int64_t rows, std::optional<double> loss) noexcept EXCLUDES(mutex_);
  void add_wrong_step() noexcept EXCLUDES(mutex_);
  void add_finding(const Finding& finding) EXCLUDES(mutex_);
  void set_equal_in(std::int64_t step) noexcept EXCLUDES(mutex_);
  void set_left(std::int64_t time) noexcept { left_.store(time, std::memory_order_relaxed); }

  // As of the end of the last step, with this process's memory and the snapshot's age as they are at `now`.
  RankTotals totals(std::int64_t now) const EXCLUDES(mutex_);

 private:
  std::array<std::atomic<std::int64_t>, kSpanKinds> spans_{};
  std::atomic<std::int64_t> after_steps_{0};
  std::atomic<std::int64_t> step_ended_{0};   // 0: a span has begun since
  std::atomic<std::int64_t> snapshot_at_{0};  // 0: there was none
  std::atomic<std::int64_t> left_{-1};

  mutable Mutex mutex_;
  RankTotals totals_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::trace
