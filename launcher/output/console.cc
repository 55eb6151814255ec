// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/console.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/base/terminal.h"

namespace lockstep::launcher {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";
// Messages before a job starts are few.
constexpr std::size_t kMostUnrecorded = 100;

bool writable(int fd) {
  pollfd entry{fd, POLLOUT, 0};
  return poll(&entry, 1, 0) > 0;  // true also for an error, which the following write reports
}

// True after 2>&1, for example.
bool same_file(int one, int other) {
  struct stat first {};
  struct stat second {};
  if (fstat(one, &first) != 0 || fstat(other, &second) != 0) throw SystemError("fstat of stdout and stderr", errno);
  return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

}  // namespace

Console::Console(int out_fd, int err_fd) {
  // A write to a pipe without a reader, or beyond ulimit -f, must fail instead of killing this process.
  for (const int number : {SIGPIPE, SIGXFSZ}) {
    if (signal(number, SIG_IGN) == SIG_ERR) throw SystemError("ignore SIGPIPE and SIGXFSZ", errno);
  }
  out_ = {.fd = out_fd, .terminal = lockstep::can_draw_on(out_fd), .broken = false, .lost = false, .pending = {}};
  err_ = {.fd = err_fd, .terminal = lockstep::can_draw_on(err_fd), .broken = false, .lost = false, .pending = {}};
  shared_ = same_file(out_fd, err_fd);
}

void Console::line(Stream stream, int rank, std::string_view text) {
  // The bar's last state arrives as a line, which makes the waiting redraw obsolete.
  if (rank == 0 && stream == bar_stream_) {
    if (!bar_.empty()) put(sink(bar_stream_), kEraseLine);
    bar_.clear();
    held_.clear();
  }
  // The library in a rank prints a label for programs without a launcher. Here it would appear twice.
  if (const auto label = fmt::format("[lockstep rank {}] ", rank); text.starts_with(label)) {
    put_line(stream, fmt::format("[rank {}] [lockstep] ", rank), text.substr(label.size()));
  } else {
    put_line(stream, fmt::format("[rank {}] ", rank), text);
  }
}

void Console::line_of_host(Stream stream, std::string_view host, std::string_view text) {
  put_line(stream, fmt::format("[{}] ", host), text);
}

void Console::redraw(Stream stream, std::string_view text) {
  bar_stream_ = stream;
  Sink& target = sink(stream);
  if (target.terminal) {
    bar_ = text;
    // A slow reader sees the newest state, not the history.
    if (target.pending.empty()) put(target, fmt::format("{}\x1b[K\r", in_one_line(text, target.fd)));
    return;
  }
  held_ = text;
  if (!next_line_ || next_line_->expired()) show_held_redraw();
}

void Console::message(std::string_view text) {
  finish();
  put_line(Stream::err, "lockstep run: ", printable_lines(text));
  note(text);
}

void Console::detail(std::string_view text) {
  put_line(Stream::err, "", text);
  note(text);
}

void Console::note(std::string_view text) {
  if (recorder_) {
    recorder_(text);
  } else if (!was_recorded_ && unrecorded_.size() < kMostUnrecorded) {
    unrecorded_.emplace_back(text);
  }
}

void Console::record(std::function<void(std::string_view text)> recorder) {
  recorder_ = std::move(recorder);
  if (!recorder_) return;
  was_recorded_ = true;
  for (const auto& text : std::exchange(unrecorded_, {})) recorder_(text);
}

void Console::flush() {
  if (!held_.empty() && next_line_ && next_line_->expired()) show_held_redraw();
  drain(out_);
  drain(err_);
}

std::optional<Deadline::Duration> Console::next_redraw() const {
  if (held_.empty() || !next_line_) return std::nullopt;
  return next_line_->remaining();
}

void Console::finish() {
  if (!held_.empty()) show_held_redraw();
  if (!bar_.empty()) put(sink(bar_stream_), fmt::format("{}{}\n", kEraseLine, std::exchange(bar_, {})));
}

void Console::show_held_redraw() {
  next_line_ = Deadline::after(kRedrawInterval);
  put_line(bar_stream_, "[rank 0] ", std::exchange(held_, {}));
}

void Console::put_line(Stream stream, std::string_view prefix, std::string_view text) {
  // On a terminal the bar occupies the last line: erase it, write the line, draw it again.
  const bool around_bar = !bar_.empty() && sink(stream).terminal;
  put(sink(stream), fmt::format("{}{}{}\n", around_bar ? kEraseLine : "", prefix, text));
  if (around_bar) put(sink(bar_stream_), fmt::format("{}\x1b[K\r", in_one_line(bar_, sink(bar_stream_).fd)));
}

void Console::put(Sink& target, std::string_view text) {
  if (target.broken) return;
  target.pending.append(text);
  drain(target);
}

void Console::drain(Sink& target) {
  std::size_t written = 0;
  while (written < target.pending.size() && writable(target.fd)) {
    // Other programs may share the file, so O_NONBLOCK must not be set on it; a pipe that poll reports as writable
    // accepts PIPE_BUF bytes at once.
    const auto bytes = write(target.fd, target.pending.data() + written,
                             std::min<std::size_t>(PIPE_BUF, target.pending.size() - written));
    if (bytes >= 0) {
      written += static_cast<std::size_t>(bytes);
    } else if (errno != EINTR && errno != EAGAIN) {
      const int error = errno;
      target.broken = true;
      target.lost = error != EPIPE;
      target.pending.clear();
      if (&target == &out_) {
        message(
            fmt::format("stdout can't be written: {}; what the ranks print there is lost from here on, so give "
                        "--log-dir to keep it",
                        errno_text(error)));
      }
      return;
    }
  }
  target.pending.erase(0, written);
}

}  // namespace lockstep::launcher
