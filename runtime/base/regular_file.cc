// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/regular_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/printable.h"

namespace lockstep {
namespace {

const char* name_of(mode_t mode) {
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISFIFO(mode)) return "a pipe";
  return S_ISDIR(mode) ? "a folder" : "a device";
}

void refuse_others(const std::string& path, const struct stat& status) {
  if (S_ISREG(status.st_mode)) return;
  throw InvalidArgument(
      fmt::format("'{}' is {}, and must be a regular file; give another path, or move away what is at this path",
                  printable(path, 1000), name_of(status.st_mode)));
}

}  // namespace

void require_regular(const std::string& path, bool follow) {
  struct stat status {};
  if ((follow ? ::stat(path.c_str(), &status) : ::lstat(path.c_str(), &status)) == 0) refuse_others(path, status);
}

UniqueFd open_regular(const std::string& path, int flags, mode_t mode) {
  UniqueFd fd(uninterrupted([&] { return ::open(path.c_str(), flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode); }));
  const int error = errno;
  struct stat status {};
  if (!fd) {
    require_regular(path, (flags & O_NOFOLLOW) == 0);
  } else if (::fstat(fd.get(), &status) == 0) {
    refuse_others(path, status);
  }
  errno = error;
  return fd;
}

std::string read_regular(const std::string& path, std::size_t most) {
  const UniqueFd fd = open_regular(path, O_RDONLY);
  std::string text;
  if (!fd || !read_all(fd.get(), text, most + 1)) throw SystemError(fmt::format("read '{}'", path), errno);
  if (text.size() <= most) return text;
  throw InvalidArgument(
      fmt::format("'{}' has more than {} bytes, which is too many for a file of this kind; check that the path names "
                  "the file that you mean",
                  path, most));
}

}  // namespace lockstep
