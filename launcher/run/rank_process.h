// SPDX-License-Identifier: Apache-2.0
// One rank as the launcher sees it: a process, and the two streams it writes.
#pragma once

#include <sys/types.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "launcher/output/console.h"
#include "launcher/output/line_splitter.h"
#include "launcher/output/log_file.h"
#include "launcher/run/rank_end.h"
#include "launcher/watch/exit_status.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::launcher {

// What comes out of a rank on one of its streams. Main thread only.
class RankOutput {
 public:
  RankOutput() = default;
  // `fd` is the read end of a pipe and doesn't block. What comes goes to `file`, or by lines to the console if there is
  // none. `keep_lines`: last_lines() has what went to the console too.
  RankOutput(int rank, Stream stream, UniqueFd fd, LogFile file = {}, bool keep_lines = false)
      : rank_(rank), stream_(stream), fd_(std::move(fd)), file_(std::move(file)), keep_lines_(keep_lines) {}

  int fd() const { return fd_.get(); }
  bool open() const { return static_cast<bool>(fd_); }
  // Reads once and passes it on. Returns the bytes read; closes at the stream's end.
  std::size_t read_some(Console& console);
  // Reads what is there on entry, and no more: a writer that goes on may be faster than the console.
  void read_available(Console& console);
  // The same for the last time: what came without an end becomes a line.
  void finish(Console& console);
  // "logs/rank1.out"; empty: the console.
  const std::string& path() const { return file_.path(); }
  // The last kShownLines; of a file, if it can be read.
  std::vector<std::string> last_lines() const;
  // Of the file, so far.
  std::uint64_t lost_bytes() const { return file_.lost_bytes(); }

 private:
  void end(Console& console);
  LineSplitter::Sink sink(Console& console);

  int rank_ = 0;
  Stream stream_ = Stream::out;
  UniqueFd fd_;
  LogFile file_;
  LineSplitter splitter_;
  bool keep_lines_ = false;
  std::deque<std::string> kept_lines_;
};

struct RankProcess {
  int rank = 0;
  pid_t pid = -1;
  UniqueFd pidfd;
  RankOutput out;
  RankOutput err;
  std::optional<ExitStatus> ending;  // once it has ended
  bool group_is_empty = false;       // neither it nor what it started in its process group is there

  bool running() const { return pid > 0 && !ending; }
};

// Reads how the process behind `pidfd` ended, and frees its id. Nothing if it still runs. Throws SystemError.
std::optional<ExitStatus> reap(int pidfd);

}  // namespace lockstep::launcher
