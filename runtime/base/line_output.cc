// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/line_output.h"

#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/base/write_at_once.h"

namespace lockstep {
namespace {

// Milliseconds until the next write to a descriptor that poll(2) calls writable but that takes nothing, such as a
// terminal with room for one byte, before a newline.
constexpr int kBetweenTries = 50;

std::int64_t lines_in(std::string_view text) { return std::count(text.begin(), text.end(), '\n'); }

// As many lines as a pipe takes in one piece: lines of another process don't come between them.
std::string_view first_piece(std::string_view lines) {
  if (lines.size() <= PIPE_BUF) return lines;
  const std::size_t end = lines.rfind('\n', PIPE_BUF - 1);
  return lines.substr(0, end == lines.npos ? PIPE_BUF : end + 1);
}

}  // namespace

LineOutput::~LineOutput() { end_thread(); }

void LineOutput::set_label(const std::string& label) {
  const MutexLock lock(mutex_);
  label_ = label;
}

void LineOutput::write(std::string_view lines) noexcept {
  const MutexLock lock(mutex_);
  try {
    const bool is_redraw = !lines.ends_with('\n');
    std::size_t done = 0;
    if (write_kept()) {
      done = write_at_once(fd_, lines);
      if (done == lines.size()) return;
      if (errno != EAGAIN) {
        lost_ += lines_in(lines.substr(done));
        return;
      }
    }
    if (!is_redraw || done > 0) keep(lines.substr(done));
  } catch (...) {  // no memory to keep it
    lost_ += lines_in(lines);
  }
}

void LineOutput::keep(std::string_view lines) {
  if (kept_.size() - written_ + lines.size() > most_kept_) {
    lost_ += lines_in(lines);
    return;
  }
  if (lost_ > 0) {
    kept_ += line_of_lost();
    lost_ = 0;
  }
  if (written_ > kept_.size() / 2) kept_.erase(0, std::exchange(written_, 0));
  kept_.append(lines);
  start_thread();
}

std::string LineOutput::line_of_lost() const {
  return fmt::format("[lockstep{}{}] warning: {} lines were lost here: nobody read them\n", label_.empty() ? "" : " ",
                     label_, lost_);
}

bool LineOutput::write_kept() {
  while (written_ < kept_.size()) {
    const std::string_view piece = first_piece(std::string_view(kept_).substr(written_));
    const std::size_t done = write_at_once(fd_, piece);
    written_ += done;
    if (done == piece.size()) continue;
    if (errno == EAGAIN) return false;
    lost_ += lines_in(std::string_view(kept_).substr(written_));  // nobody can read it any more
    break;
  }
  kept_.clear();
  written_ = 0;
  if (lost_ == 0) return true;
  const std::string line = line_of_lost();
  const std::size_t done = write_at_once(fd_, line);
  const bool waits = done < line.size() && errno == EAGAIN;
  if (waits) kept_ = line.substr(done);
  if (waits || done == line.size()) lost_ = 0;
  return !waits;
}

// Without a thread the next write() and flush() do its work.
void LineOutput::start_thread() noexcept {
  if (is_ending_) return;
  try {
    if (!wake_) wake_ = std::make_unique<EventFd>();
    if (!thread_) thread_ = std::make_unique<std::thread>(start_quiet_thread([this, &wake = *wake_] { run(wake); }));
    wake_->notify();
  } catch (const std::exception&) {
  }
}

void LineOutput::run(const EventFd& wake) {
  for (;;) {
    wake.clear();
    bool is_left = false, is_stuck = false;
    {
      const MutexLock lock(mutex_);
      if (is_ending_) return;
      const std::size_t before = written_;
      is_left = !write_kept();
      is_stuck = is_left && written_ == before;
    }
    pollfd both[] = {{.fd = wake.fd(), .events = POLLIN, .revents = 0}, {.fd = fd_, .events = POLLOUT, .revents = 0}};
    if (is_stuck && ::poll(&both[1], 1, 0) > 0) {
      ::poll(both, 1, kBetweenTries);
    } else {
      ::poll(both, is_left ? 2 : 1, -1);
    }
  }
}

bool LineOutput::flush(const Deadline& deadline) noexcept {
  for (;;) {
    {
      const MutexLock lock(mutex_);
      try {
        if (write_kept()) return lost_ == 0;
      } catch (...) {  // no memory for the line of lost ones
        return false;
      }
    }
    if (deadline.expired()) return false;
    pollfd one{.fd = fd_, .events = POLLOUT, .revents = 0};
    ::poll(&one, 1, deadline.poll_timeout_ms());
  }
}

void LineOutput::end_thread() noexcept {
  std::unique_ptr<std::thread> thread;
  {
    const MutexLock lock(mutex_);
    is_ending_ = true;
    thread = std::move(thread_);
    if (wake_) wake_->notify();
  }
  if (thread) thread->join();
}

void LineOutput::before_fork() { mutex_.lock(); }

void LineOutput::after_fork_in_parent() { mutex_.unlock(); }

void LineOutput::after_fork_in_child() {
  kept_.clear();
  written_ = 0;
  lost_ = 0;
  is_ending_ = false;
  static_cast<void>(thread_.release());  // it runs in the parent alone
  wake_.reset();
  mutex_.unlock();
}

LineOutput& stderr_output() {
  // Leaked: threads may write while statics are destroyed.
  static LineOutput* const instance = [] {
    static LineOutput* output = new LineOutput(STDERR_FILENO);
    const int failed = ::pthread_atfork([] { output->before_fork(); }, [] { output->after_fork_in_parent(); },
                                        [] { output->after_fork_in_child(); });
    if (failed != 0) throw SystemError("pthread_atfork", failed);
    // The library may be unloaded after that: no thread of its own may run then.
    std::atexit([] {
      flush_stderr();
      output->end_thread();
    });
    return output;
  }();
  return *instance;
}

void flush_stderr() noexcept { stderr_output().flush(Deadline::after(kStderrPatience)); }

}  // namespace lockstep
