// SPDX-License-Identifier: Apache-2.0
// What every DistributedDataParallel asks of the numbers that a program gives it.
#pragma once

#include <cstdint>

#include "runtime/base/internal_api.h"

namespace lockstep {

// InvalidArgument if a number of steps that a program gives is negative; else the number.
LOCKSTEP_INTERNAL_API std::int64_t checked_steps(std::int64_t steps);
// InvalidArgument if a weight that a program gives is negative; else the weight.
LOCKSTEP_INTERNAL_API std::int64_t checked_weight(std::int64_t weight);

}  // namespace lockstep
