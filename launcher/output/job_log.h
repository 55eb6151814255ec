// SPDX-License-Identifier: Apache-2.0
// The log of a host's ranks and launcher, line by line in the order of arrival:
//
//   2026-11-23T13:28:23.123456Z rank2.err: loss is nan
//   2026-11-23T13:28:23.201003Z lockstep run: rank 2 (host a, pid 4711) exited with code 1 ...
//
// The time, in UTC, is that at which the launcher read the line. Of a progress bar the log has the state at which its
// line ended; a line longer than LineSplitter::kMaxLine is split. The log is written to a file, if there is one, and to
// the recent lines (recent_lines.h). Main thread only.
#pragma once

#include <string>
#include <string_view>

#include "launcher/output/log_file.h"
#include "launcher/output/recent_lines.h"

namespace lockstep::launcher {

class JobLog {
 public:
  // `file` may be closed, and then takes nothing. `recent` outlives the log.
  JobLog(RecentLines& recent, LogFile file) : recent_(recent), file_(std::move(file)) {}

  // Returns the prefix of lines of `who` that arrive now: the same for all lines that arrived together.
  static std::string prefix(std::string_view who);
  void line(std::string_view prefix, std::string_view text) { lines_.append(prefix).append(text).push_back('\n'); }
  // Writes the lines since the last call. Returns the result of LogFile::write().
  std::string flush();
  // Writes the launcher's message, which may have several lines. Returns as flush() does.
  std::string message(std::string_view text);
  // Returns the result of LogFile::close().
  std::string close() { return file_.close(); }

  const std::string& path() const { return file_.path(); }
  std::uint64_t lost_bytes() const { return file_.lost_bytes(); }

 private:
  RecentLines& recent_;
  LogFile file_;
  std::string lines_;  // since the last flush()
};

}  // namespace lockstep::launcher
