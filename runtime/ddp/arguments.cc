// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/arguments.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

std::int64_t checked_steps(std::int64_t steps) {
  if (steps >= 0) return steps;
  throw InvalidArgument(
      fmt::format("DistributedDataParallel: set_steps({}); give the number of steps done, at least 0", steps));
}

std::int64_t checked_weight(std::int64_t weight) {
  if (weight >= 0) return weight;
  throw InvalidArgument(
      fmt::format("DistributedDataParallel: weight {}; give the number of rows or loss terms, at least 0", weight));
}

}  // namespace lockstep
