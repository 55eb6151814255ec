// SPDX-License-Identifier: Apache-2.0
#include "lockstep/metrics/metrics.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/comm/coordinated_stop.h"
#include "runtime/comm/group_internals.h"
#include "runtime/trace/process_trace.h"

namespace lockstep {

void log_scalar(const ProcessGroup& group, std::string_view name, double value, std::optional<std::int64_t> step) {
  constexpr std::size_t kMost = trace::ScalarTable::kMostNameBytes;
  if (name.empty() || name.size() > kMost) {
    throw InvalidArgument(
        fmt::format("log_scalar: the name '{}' has {} bytes; give 1 to {}", printable(name), name.size(), kMost));
  }
  if (printable(name, kMost) != name) {
    throw InvalidArgument(
        fmt::format("log_scalar: the name '{}' has control characters or bytes that are not UTF-8; leave them out",
                    printable(name)));
  }
  constexpr std::int64_t kMostStep = trace::ScalarTable::kMostStep;
  if (step && (*step < 0 || *step > kMostStep)) {
    throw InvalidArgument(
        fmt::format("log_scalar: step {} of '{}' is not a number of steps; give 0 to {}", *step, name, kMostStep));
  }
  // A group that does not train itself counts no steps: those of the process are meant.
  if (const std::int64_t done = group.internals().coordinated_stop()->steps_done(); !step && done > 0) step = done;
  trace::keep_scalar(name, value, step);
}

}  // namespace lockstep
