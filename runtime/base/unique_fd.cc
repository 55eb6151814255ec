// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/unique_fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/error.h"

namespace lockstep {

int UniqueFd::moved_above_streams(int fd) noexcept {
  const int flags = ::fcntl(fd, F_GETFD);
  const int moved = ::fcntl(fd, (flags & FD_CLOEXEC) != 0 ? F_DUPFD_CLOEXEC : F_DUPFD, 3);
  if (moved < 0) return fd;
  ::close(fd);
  return moved;
}

void UniqueFd::replace(int fd) noexcept {
  // Linux frees the number whatever close() returns, so there is nothing to retry.
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

UniqueFd duplicate(int fd) {
  UniqueFd result(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!result) throw SystemError("fcntl F_DUPFD_CLOEXEC", errno);
  return result;
}

}  // namespace lockstep
