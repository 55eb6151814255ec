// SPDX-License-Identifier: Apache-2.0
// All that a host's ranks write and its launcher says, line by line in the order in which it came:
//
//   2026-11-23T13:28:23.123456Z rank2.err: loss is nan
//   2026-11-23T13:28:23.201003Z lockstep run: rank 2 (host a, pid 4711) exited with code 1 ...
//
// The time is that at which the launcher has read it, in UTC. Of a progress bar it has what stood when its line ended;
// a line of more than LineSplitter::kMaxLine comes in parts. It goes to a file, if it has one, and to the recent lines
// (recent_lines.h). Main thread only.
#pragma once

#include <string>
#include <string_view>

#include "launcher/output/log_file.h"
#include "launcher/output/recent_lines.h"

namespace lockstep::launcher {

class JobLog {
 public:
  // `file`: as LogFile has it; one that isn't open takes nothing. `recent` outlives it.
  JobLog(RecentLines& recent, LogFile file) : recent_(recent), file_(std::move(file)) {}

  // What stands before a line of `who` that has come now: one for all lines that came together.
  static std::string prefix(std::string_view who);
  void line(std::string_view prefix, std::string_view text) { lines_.append(prefix).append(text).push_back('\n'); }
  // The lines since the last call go on. Returns as LogFile::write().
  std::string flush();
  // The launcher's own words, which may have lines. As flush().
  std::string message(std::string_view text);
  // As LogFile::close().
  std::string close() { return file_.close(); }

  const std::string& path() const { return file_.path(); }
  std::uint64_t lost_bytes() const { return file_.lost_bytes(); }

 private:
  RecentLines& recent_;
  LogFile file_;
  std::string lines_;  // since the last flush()
};

}  // namespace lockstep::launcher
