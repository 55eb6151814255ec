// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/quiet_thread.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/base/resource_limit.h"

namespace lockstep {

void throw_no_thread(int error_number) {
  throw SystemError(fmt::format("starting a thread: {}", thread_limits()), error_number);
}

}  // namespace lockstep
