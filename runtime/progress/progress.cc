// SPDX-License-Identifier: Apache-2.0
#include "lockstep/progress/progress.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "lockstep/base/owner_process.h"
#include "runtime/base/line_output.h"
#include "runtime/base/terminal.h"
#include "runtime/base/unwind_guard.h"
#include "runtime/progress/progress_line.h"
#include "runtime/trace/process_trace.h"

namespace lockstep {
namespace {

// One write per redraw, so that it can't mix with other ranks' lines. A terminal that is gone or paused must not hold
// up training.
void write_stderr(std::string_view text) {
  const char end = text.back();
  text.remove_suffix(1);
  const std::string_view first_line = in_one_line(text, STDERR_FILENO);
  // A line that stays shows all of its letters, and those of the blanks behind them that fit.
  const std::size_t letters = end == '\r' ? 0 : text.find_last_not_of(' ') + 1;
  stderr_output().write(std::string(text.substr(0, std::max(letters, first_line.size()))) + end);
}

}  // namespace

struct Progress::Impl {
  ProgressLine line;
  UnwindGuard unwind_guard = {};
  OwnerProcess owner = {};  // whose line it is
  // The time left of the loop around this one, as in validation during training; -1: this is the outermost.
  std::int64_t outer_left = trace::totals().left;

  template <typename... What>
  void step(const What&... what) {
    const auto now = ProgressLine::Clock::now();
    line.step(what..., now);
    // For `lockstep top`.
    if (outer_left < 0) trace::keep_left(line.left(now).value_or(std::chrono::nanoseconds(-1)).count());
  }
};

Progress::Progress(const ProcessGroup& group, std::int64_t total, std::int64_t last_batch, std::int64_t last_record)
    : impl_(new Impl{.line = {choose_progress_mode(Environment::of_process(), group.rank(), can_draw_on(STDERR_FILENO)),
                              total, ProgressLine::Clock::now(), write_stderr, last_batch, last_record,
                              trace::newest_scalars}}) {}

Progress::~Progress() {
  trace::keep_left(impl_->outer_left);  // also after an exception
  if (!impl_->unwind_guard.is_unwinding() && impl_->owner.is_here()) finish();
}

void Progress::step(const ProgressStep& step) { impl_->step(step); }
void Progress::step(const GlobalBatch& batch, const trace::StepRecord& record) { impl_->step(batch, record); }
void Progress::note(std::string_view text) { impl_->line.note(text); }
void Progress::finish() {
  trace::keep_left(impl_->outer_left);
  impl_->line.finish(ProgressLine::Clock::now());
}

}  // namespace lockstep
