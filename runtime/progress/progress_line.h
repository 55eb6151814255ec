// SPDX-License-Identifier: Apache-2.0
// The text of a progress bar, and when it is drawn. No clock, no terminal: both are given.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/progress/progress.h"
#include "runtime/trace/scalar_table.h"
#include "runtime/trace/step_summary.h"

namespace lockstep {

enum class ProgressMode : std::uint8_t {
  off,       // nothing: all ranks but 0
  terminal,  // redraws in place, at most 10 a second
  redraws,   // the same for `lockstep run`, which shows them on its terminal or thins them out to lines
  lines,     // a line every 2 s
};

// LOCKSTEP_PROGRESS (bar, lines or off) decides on rank 0; else `terminal`, or LOCKSTEP_RUN_ID for the launcher.
// InvalidArgument for another value of it.
ProgressMode choose_progress_mode(const Environment& environment, int rank, bool terminal);

class ProgressLine {
 public:
  using Clock = std::chrono::steady_clock;
  // Gets whole writes: a redraw with its '\r', or lines with their '\n'.
  using Write = std::function<void(std::string_view)>;
  // Tells the scalars that this rank has logged, the newest first.
  using Scalars = std::function<std::vector<trace::Scalar>()>;

  // `total` steps, 0 if unknown. Up to step `last_batch` a GlobalBatch's loss and samples don't count any more, and up
  // to `last_record` a record doesn't.
  ProgressLine(ProgressMode mode, std::int64_t total, Clock::time_point begin, Write write,
               std::int64_t last_batch = -1, std::int64_t last_record = -1, Scalars scalars = {});

  void step(const ProgressStep& step, Clock::time_point now);
  // A step behind which `batch` is the last one known: its samples count once, over micro-batches too.
  void step(const GlobalBatch& batch, const trace::StepRecord& record, Clock::time_point now);
  // A line of its own, above the bar.
  void note(std::string_view text);
  // The last state of the bar and the summary of the run. Once; later calls do nothing.
  void finish(Clock::time_point now);
  // Until the last step, at the mean speed so far; nothing without a total, before the first step and behind the last.
  std::optional<std::chrono::nanoseconds> left(Clock::time_point now) const;

 private:
  std::string text(Clock::time_point now) const;
  // Writes a line over what the bar shows.
  void line(std::string_view text);

  ProgressMode mode_;
  std::int64_t total_;
  Clock::time_point begin_;
  Write write_;
  Scalars scalars_;
  std::int64_t steps_ = 0;
  std::int64_t samples_ = 0;
  std::int64_t last_batch_;  // its step
  std::optional<double> loss_;
  trace::StepSummary summary_;
  std::optional<Clock::time_point> drawn_;
  std::size_t width_ = 0;  // of the bar on the terminal
  bool finished_ = false;
};

}  // namespace lockstep
