// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/unique_fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/error.h"

namespace lockstep {

void UniqueFd::reset(int fd) {
  // Linux frees the number whatever close() returns, so there is nothing to retry.
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

UniqueFd duplicate(int fd) {
  UniqueFd result(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!result) throw SystemError("fcntl F_DUPFD_CLOEXEC", errno);
  return result;
}

}  // namespace lockstep
