// SPDX-License-Identifier: Apache-2.0
// setsockopt(2) of a number, which must succeed.
#pragma once

#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>

#include "lockstep/base/error.h"

namespace lockstep::net {

// SystemError that names `what`.
inline void set_option(int fd, int level, int name, int value, const char* what) {
  if (::setsockopt(fd, level, name, &value, sizeof(value)) != 0) {
    throw SystemError(fmt::format("setsockopt({})", what), errno);
  }
}

}  // namespace lockstep::net
