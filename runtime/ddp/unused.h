// SPDX-License-Identifier: Apache-2.0
// Parameters that a program declares unused: those that no rank's loss depends on, so that no bucket waits for them.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>

#include "lockstep/ddp/bucket_plan.h"
#include "runtime/base/internal_api.h"

namespace lockstep {

// InvalidArgument if no parameter has one of the names.
LOCKSTEP_INTERNAL_API std::set<int> indices_of_unused(std::span<const std::string> unused,
                                                      std::span<const ParameterSpec> parameters);
// InvalidArgument: a parameter that is declared unused got a gradient.
[[noreturn]] LOCKSTEP_INTERNAL_API void refuse_gradient_of_unused(const std::string& name, std::int64_t step);

}  // namespace lockstep
