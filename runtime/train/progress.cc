#include "runtime/train/progress.h"

#include <unistd.h>

#include "runtime/base/io.h"

namespace lockstep {
namespace {

// One write per redraw, so that it can't mix with other ranks' lines. A terminal that is gone must not end training.
void write_stderr(std::string_view text) { write_all(STDERR_FILENO, text); }

}  // namespace

Progress::Progress(const ProcessGroup& group, std::int64_t total)
    : line_(choose_progress_mode(Environment::of_process(), group.rank(), ::isatty(STDERR_FILENO) == 1), total,
            ProgressLine::Clock::now(), write_stderr) {}

Progress::~Progress() {
  if (!unwind_guard_.is_unwinding() && owner_.is_here()) finish();
}

}  // namespace lockstep
