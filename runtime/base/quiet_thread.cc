// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/quiet_thread.h"

#include <fmt/format.h>

#include <cerrno>
#include <string>

#include "lockstep/base/error.h"
#include "runtime/base/resource_limit.h"

namespace lockstep {

void throw_no_thread(int error_number) {
  const std::string remedy = error_number == EPERM
                                 ? "a seccomp filter refuses clone3; let it answer ENOSYS, or allow the call"
                                 : thread_limits();
  throw SystemError(fmt::format("starting a thread: {}", remedy), error_number);
}

}  // namespace lockstep
