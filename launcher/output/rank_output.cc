// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/rank_output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "launcher/output/log_folder.h"
#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/printable.h"

namespace lockstep::launcher {
namespace {

// Limit for a line that is kept.
constexpr std::size_t kMostKeptBytes = 1000;

void say(const std::string& problem, Console& console) {
  if (!problem.empty()) console.message(problem);
}

}  // namespace

RankOutput::RankOutput(int rank, Stream stream, UniqueFd fd, Sinks sinks)
    : rank_(rank), stream_(stream), fd_(std::move(fd)), sinks_(std::move(sinks)), label_(rank_label(rank, stream)) {}

std::vector<std::string> RankOutput::last_lines() const {
  std::vector<std::string> lines(kept_lines_.begin(), kept_lines_.end());
  if (sinks_.keep_lines && !splitter_.partial().empty())
    lines.emplace_back(splitter_.partial().substr(0, kMostKeptBytes));
  if (lines.size() > kShownLines) lines.erase(lines.begin());
  return lines;
}

// libstdc++ prints a line with the type and a line with the text. Python prints a head, indented frames, and the
// exception; torch.distributed puts "[rank1]: " before each line, and a DataLoader appends its worker's "Original
// Traceback" to the text.
void RankOutput::note_fatal_error(std::string_view line) {
  constexpr std::string_view kType = "terminate called after throwing an instance of ";
  constexpr std::string_view kText = "  what():  ";
  constexpr std::string_view kOurs = "] fatal: ";
  const auto ours = line.starts_with("[lockstep") ? line.find(kOurs) : line.npos;
  if (line.starts_with(kType)) fatal_error_ = printable(line.substr(kType.size()));
  if (line.starts_with(kText)) fatal_error_ += ": " + printable(line.substr(kText.size()), kMostKeptBytes);
  const auto mark = line.find(']');
  const bool is_uncaught = line.starts_with("[rank") && mark != line.npos && line.substr(mark).starts_with("]: ");
  if (is_uncaught) line.remove_prefix(mark + 3);
  // An exception without torch's mark may have been caught and logged. Where one ends no process, Python says so in the
  // line before its traceback. The tracebacks of an exception group are indented, and are not read.
  const bool is_harmless = line.starts_with("Exception ignored in") || line.starts_with("Exception in thread");
  const bool is_head = line.ends_with("Traceback (most recent call last):") && !line.starts_with(' ') &&
                       (is_uncaught || (!has_uncaught_ && !after_harmless_));
  after_harmless_ = is_harmless;
  has_uncaught_ = has_uncaught_ || (is_head && is_uncaught);
  if (in_traceback_ && !is_head && is_uncaught == has_uncaught_ && !line.empty() && line.front() != ' ') {
    fatal_error_ = printable(line, kMostKeptBytes);
    in_traceback_ = false;
  }
  in_traceback_ = in_traceback_ || is_head;
  if (ours != line.npos) fatal_error_ = printable(line.substr(ours + kOurs.size()), kMostKeptBytes);
}

LineSplitter::Sink RankOutput::sink(Console& console) {
  return [this, &console](LineSplitter::Kind kind, std::string_view text) {
    if (kind == LineSplitter::Kind::redraw) {  // every rank may draw a bar; only one is shown
      if (rank_ == 0 && sinks_.shown) console.redraw(stream_, text);
      return;
    }
    if (sinks_.log != nullptr) sinks_.log->line(prefix_, text);
    if (sinks_.shown) console.line(stream_, rank_, text);
    if (stream_ == Stream::err) note_fatal_error(text);
    if (!sinks_.keep_lines) return;
    kept_lines_.emplace_back(text.substr(0, kMostKeptBytes));
    if (kept_lines_.size() > kShownLines) kept_lines_.pop_front();
  };
}

template <typename Split>
void RankOutput::take_lines(Console& console, Split split) {
  if (sinks_.log != nullptr) prefix_ = JobLog::prefix(label_);
  split(sink(console));
  if (sinks_.log != nullptr) say(sinks_.log->flush(), console);
}

void RankOutput::pass_on(std::string_view bytes, Console& console) {
  if (sinks_.file.open()) say(sinks_.file.write(bytes), console);
  take_lines(console, [&](const LineSplitter::Sink& lines) { splitter_.feed(bytes, lines); });
}

std::size_t RankOutput::read_some(Console& console) {
  if (!fd_) return 0;
  char buffer[kPieceBytes];
  const auto bytes = uninterrupted([&] { return read(fd_.get(), buffer, sizeof buffer); });
  if (bytes > 0) {
    pass_on({buffer, static_cast<std::size_t>(bytes)}, console);
    return static_cast<std::size_t>(bytes);
  }
  if (bytes == 0 || errno != EAGAIN) end(console);
  return 0;
}

void RankOutput::end(Console& console) {
  take_lines(console, [this](const LineSplitter::Sink& lines) { splitter_.finish(lines); });
  say(sinks_.file.close(), console);
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

}  // namespace lockstep::launcher
