// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/exit_code.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"

namespace lockstep {

int requeue_exit_code(const Environment& environment) {
  const auto text = environment.get("LOCKSTEP_REQUEUE_EXIT_CODE");
  if (!text) return kExitRequeue;
  const auto code = parse_int(*text);
  if (code && *code >= 1 && *code <= kMostRequeueCode) return static_cast<int>(*code);
  throw InvalidArgument(fmt::format(
      "environment: LOCKSTEP_REQUEUE_EXIT_CODE='{}' is not an exit code that can ask for a new start; give 1 to {}",
      printable(*text), kMostRequeueCode));
}

}  // namespace lockstep
