// SPDX-License-Identifier: Apache-2.0
// A file of --log-dir that stores one stream of a rank.
//
// Bytes that can't be written (disk full, over a quota, a failing disk) are lost and counted: the rank continues, the
// launcher reports the loss and exits with a code other than 0. When writing succeeds again, the file resumes with a
// line that states how many bytes are missing. Main thread only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/unique_fd.h"

namespace lockstep::launcher {

class LogFile {
 public:
  LogFile() = default;
  // Creates or empties the file. Throws SystemError.
  explicit LogFile(std::string path);

  bool open() const { return static_cast<bool>(fd_); }
  // Appends all bytes. Returns the reason, as words for a message, when a gap begins; else an empty string.
  std::string write(std::string_view bytes);
  // Call it after the last write. Returns as write() does: some file systems report a full disk only on close.
  std::string close();

  const std::string& path() const { return path_; }
  // Bytes lost in total. A failed close() counts as one.
  std::uint64_t lost_bytes() const { return lost_; }

 private:
  std::string path_;
  UniqueFd fd_;
  std::uint64_t lost_ = 0;
  std::uint64_t gap_ = 0;  // bytes that are missing at the file's present end
};

}  // namespace lockstep::launcher
