// SPDX-License-Identifier: Apache-2.0
// One stream of a rank as a file of --log-dir.
//
// What can't be written (no room, over a quota, a failing disk) is lost and counted, never in silence: the rank goes
// on, the launcher says it and ends with another code than 0. Once there is room again the file goes on, behind a line
// that says how much is missing. Main thread only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/unique_fd.h"

namespace lockstep::launcher {

class LogFile {
 public:
  LogFile() = default;
  // Makes the file, or empties it. Throws SystemError.
  explicit LogFile(std::string path);

  bool open() const { return static_cast<bool>(fd_); }
  // Appends all of it. Returns why some was lost, in words for a message, when that begins; else nothing.
  std::string write(std::string_view bytes);
  // No more is coming. As write(): some file systems say only now that there was no room.
  std::string close();

  const std::string& path() const { return path_; }
  // In all. What close() failed for counts as one.
  std::uint64_t lost_bytes() const { return lost_; }

 private:
  std::string path_;
  UniqueFd fd_;
  std::uint64_t lost_ = 0;
  std::uint64_t gap_ = 0;  // bytes that are missing at the file's end
};

}  // namespace lockstep::launcher
