// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/unique_fd.h"

#include <unistd.h>

namespace lockstep {

void UniqueFd::reset(int fd) {
  // Linux frees the number whatever close() returns, so there is nothing to retry.
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

}  // namespace lockstep
