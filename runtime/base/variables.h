// SPDX-License-Identifier: Apache-2.0
// The names of the variables LOCKSTEP_*, by which one that nothing reads is found: it would have no effect, silently.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/environment.h"

namespace lockstep {

inline constexpr std::string_view kVariablePrefix = "LOCKSTEP_";

// Whether docs/ENVIRONMENT.md has the variable.
bool is_known_variable(std::string_view name);

// The variable that a mistyped name means; nullopt if the name resembles none of them.
std::optional<std::string_view> variable_like(std::string_view name);

// A sentence for each variable that is set, begins with LOCKSTEP_ and is not one of lockstep's. Those of its own tests,
// LOCKSTEP_TEST_ and LOCKSTEP_FAKE_, are passed over.
std::vector<std::string> unknown_variables(const Environment& environment);

}  // namespace lockstep
