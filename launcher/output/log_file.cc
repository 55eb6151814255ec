// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/log_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "launcher/base/system.h"
#include "lockstep/base/error.h"
#include "runtime/base/io.h"

namespace lockstep::launcher {

LogFile::LogFile(std::string path) : path_(std::move(path)), fd_(open_file(path_, true)) {}

std::string LogFile::write(std::string_view bytes) {
  const bool was_whole = gap_ == 0;
  if (!was_whole) {
    const std::string mark = fmt::format("\n[lockstep run] {} bytes are missing here\n", gap_);
    if (write_all(fd_.get(), mark) == mark.size()) gap_ = 0;
  }
  const std::size_t written = gap_ == 0 ? write_all(fd_.get(), bytes) : 0;
  const int error = errno;
  if (written == bytes.size()) return {};
  lost_ += bytes.size() - written;
  gap_ += bytes.size() - written;
  if (!was_whole) return {};
  return fmt::format(
      "{} can't be written: {}; what the rank prints is lost until the file can be written, and this command's exit "
      "code will not be 0",
      path_, errno_text(error));
}

std::string LogFile::close() {
  if (!fd_ || ::close(fd_.release()) == 0 || errno == EINTR) return {};
  const int error = errno;
  ++lost_;
  return fmt::format("{} can't be closed: {}; what the rank printed may be lost", path_, errno_text(error));
}

}  // namespace lockstep::launcher
