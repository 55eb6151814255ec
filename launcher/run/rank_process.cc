// SPDX-License-Identifier: Apache-2.0
#include "launcher/run/rank_process.h"

#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <string_view>

#include "lockstep/base/error.h"
#include "runtime/base/io.h"

namespace lockstep::launcher {
namespace {

// Of a line that is kept.
constexpr std::size_t kMostKeptBytes = 1000;

// The end of a file, at most kShownLines; empty if it can't be read.
std::deque<std::string> end_of_file(const std::string& path) {
  constexpr std::streamoff kTail = 16 * 1024;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : 0;
  file.seekg(size > kTail ? size - kTail : 0);
  std::deque<std::string> last;
  for (std::string line; std::getline(file, line);) {
    last.push_back(line);
    if (last.size() > kShownLines) last.pop_front();
  }
  return last;
}

}  // namespace

std::vector<std::string> RankOutput::last_lines() const {
  const auto lines = path().empty() ? kept_lines_ : end_of_file(path());
  return {lines.begin(), lines.end()};
}

LineSplitter::Sink RankOutput::sink(Console& console) {
  return [this, &console](LineSplitter::Kind kind, std::string_view text) {
    if (kind == LineSplitter::Kind::line) {
      console.line(stream_, rank_, text);
      if (!keep_lines_) return;
      kept_lines_.emplace_back(text.substr(0, kMostKeptBytes));
      if (kept_lines_.size() > kShownLines) kept_lines_.pop_front();
    } else if (rank_ == 0) {  // every rank may draw a bar; one of them is shown
      console.redraw(stream_, text);
    }
  };
}

std::size_t RankOutput::read_some(Console& console) {
  if (!fd_) return 0;
  char buffer[64 * 1024];
  const auto bytes = uninterrupted([&] { return read(fd_.get(), buffer, sizeof buffer); });
  if (bytes > 0) {
    const std::string_view text(buffer, static_cast<std::size_t>(bytes));
    if (!file_.open()) {
      splitter_.feed(text, sink(console));
    } else if (const auto problem = file_.write(text); !problem.empty()) {
      console.message(problem);
    }
    return text.size();
  }
  if (bytes == 0 || errno != EAGAIN) end(console);
  return 0;
}

void RankOutput::end(Console& console) {
  splitter_.finish(sink(console));
  if (const auto problem = file_.close(); !problem.empty()) console.message(problem);
  fd_.reset();
}

void RankOutput::read_available(Console& console) {
  if (!fd_) return;
  int there = 0;
  if (ioctl(fd_.get(), FIONREAD, &there) != 0) throw SystemError("ioctl FIONREAD", errno);
  for (auto left = static_cast<std::size_t>(there); left > 0;) {
    const auto bytes = read_some(console);
    if (bytes == 0) return;
    left -= std::min(left, bytes);
  }
}

void RankOutput::finish(Console& console) {
  read_available(console);
  if (fd_) end(console);
}

std::optional<ExitStatus> reap(int pidfd) {
  siginfo_t info{};
  const int result = uninterrupted([&] { return waitid(P_PIDFD, static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG); });
  if (result != 0) throw SystemError("waitid for a rank", errno);
  if (info.si_pid == 0) return std::nullopt;
  return ExitStatus{
      .by_signal = info.si_code != CLD_EXITED, .value = info.si_status, .dumped_core = info.si_code == CLD_DUMPED};
}

}  // namespace lockstep::launcher
