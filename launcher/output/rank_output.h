// SPDX-License-Identifier: Apache-2.0
// One stream of a rank's output and its sinks: a file, the job's log and the console. Main thread only.
//
// Each piece reaches all sinks before the next is read, and nothing is read while the console is behind
// (Console::kBacklogLimit) or a file is slow. So a slow sink blocks the rank, no output is dropped, and memory stays
// bounded.
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
  // Size of one read, and of a rank's pipe if the kernel grants it: a rank that writes much is woken, and wakes the
  // launcher, a quarter as often as with the kernel's default of 64 KiB.
  static constexpr int kPieceBytes = 256 * 1024;

  struct Sinks {
    LogFile file = {};        // gets all bytes; may be closed
    JobLog* log = nullptr;    // gets lines; outlives this
    bool shown = true;        // shows lines on the console
    bool keep_lines = false;  // keeps lines for last_lines(), since they are not shown
  };

  RankOutput() = default;
  // `fd` is the non-blocking read end of a pipe.
  RankOutput(int rank, Stream stream, UniqueFd fd, Sinks sinks);

  int fd() const { return fd_.get(); }
  bool open() const { return static_cast<bool>(fd_); }
  // Reads once and passes the bytes on. Returns their number; closes `fd` at the stream's end.
  std::size_t read_some(Console& console);
  // Reads the bytes that were there on entry, and no more: a writer that continues may be faster than the console.
  void read_available(Console& console);
  // Does the same a last time: bytes without an end become a line.
  void finish(Console& console);
  // Path such as "logs/start1/rank1.out"; empty: no file.
  const std::string& path() const { return sinks_.file.path(); }
  // Returns the last kShownLines lines, without the redraws of a bar; the last of them may lack its end.
  std::vector<std::string> last_lines() const;
  // Type and first line of the text of the last uncaught exception that the C++ runtime, Python, or lockstep in the
  // rank has printed on this stream; empty: none.
  const std::string& fatal_error() const { return fatal_error_; }
  // Bytes lost by the file so far.
  std::uint64_t lost_bytes() const { return sinks_.file.lost_bytes(); }

 private:
  void note_fatal_error(std::string_view line);
  void pass_on(std::string_view bytes, Console& console);
  void end(Console& console);
  LineSplitter::Sink sink(Console& console);
  // Passes the lines of `split`, which have just arrived, to the sinks.
  template <typename Split>
  void take_lines(Console& console, Split split);

  int rank_ = 0;
  Stream stream_ = Stream::out;
  UniqueFd fd_;
  Sinks sinks_;
  std::string label_;   // such as "rank1.out"
  std::string prefix_;  // in the job's log, for the newest lines
  LineSplitter splitter_;
  std::deque<std::string> kept_lines_;
  std::string fatal_error_;
  bool in_traceback_ = false;    // Python's, whose last line is the exception
  bool has_uncaught_ = false;    // torch has marked one as uncaught
  bool after_harmless_ = false;  // Python has just named one that ends no process
};

}  // namespace lockstep::launcher
