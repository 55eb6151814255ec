// SPDX-License-Identifier: Apache-2.0
// What comes out of a rank on one of its streams, on its way to a file, the job's log and the console. Main thread
// only.
//
// Each piece goes to all of them before the next is read, and nobody reads while the console is behind
// (Console::kBacklogLimit) or a file takes its time: so a slow sink blocks the rank, and nothing is dropped or piles
// up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "launcher/output/console.h"
#include "launcher/output/job_log.h"
#include "launcher/output/line_splitter.h"
#include "launcher/output/log_file.h"
#include "launcher/process/rank_end.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::launcher {

class RankOutput {
 public:
  // Read at one time, and what the pipe of a rank holds if the kernel grants it: a rank that writes much is woken, and
  // wakes the launcher, a quarter as often as with the kernel's own 64 KiB.
  static constexpr int kPieceBytes = 256 * 1024;

  struct Sinks {
    LogFile file = {};        // byte by byte; may be none
    JobLog* log = nullptr;    // by lines; outlives this
    bool shown = true;        // by lines on the console
    bool keep_lines = false;  // for last_lines(): the console does not show them
  };

  RankOutput() = default;
  // `fd` is the read end of a pipe and doesn't block.
  RankOutput(int rank, Stream stream, UniqueFd fd, Sinks sinks);

  int fd() const { return fd_.get(); }
  bool open() const { return static_cast<bool>(fd_); }
  // Reads once and passes it on. Returns the bytes read; closes at the stream's end.
  std::size_t read_some(Console& console);
  // Reads what is there on entry, and no more: a writer that goes on may be faster than the console.
  void read_available(Console& console);
  // The same for the last time: what came without an end becomes a line.
  void finish(Console& console);
  // "logs/generation0/rank1.out"; empty: there is no file.
  const std::string& path() const { return sinks_.file.path(); }
  // The last kShownLines, without the redraws of a bar; the last of them may have no end yet.
  std::vector<std::string> last_lines() const;
  // What the C++ runtime, or lockstep in the rank, has written here of an exception that nobody caught, last: its type
  // and the first line of its text. Empty: nothing.
  const std::string& fatal_error() const { return fatal_error_; }
  // Of the file, so far.
  std::uint64_t lost_bytes() const { return sinks_.file.lost_bytes(); }

 private:
  void note_fatal_error(std::string_view line);
  void pass_on(std::string_view bytes, Console& console);
  void end(Console& console);
  LineSplitter::Sink sink(Console& console);
  // Takes the lines of `split`, which have come now.
  template <typename Split>
  void take_lines(Console& console, Split split);

  int rank_ = 0;
  Stream stream_ = Stream::out;
  UniqueFd fd_;
  Sinks sinks_;
  std::string label_;   // "rank1.out"
  std::string prefix_;  // in the job's log, of the lines that came last
  LineSplitter splitter_;
  std::deque<std::string> kept_lines_;
  std::string fatal_error_;
};

}  // namespace lockstep::launcher
