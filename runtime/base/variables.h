// SPDX-License-Identifier: Apache-2.0
// The names of the variables LOCKSTEP_*, by which one that is misspelt is found: it would have no effect, silently.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/environment.h"

namespace lockstep {

inline constexpr std::string_view kVariablePrefix = "LOCKSTEP_";

// Those of docs/ENVIRONMENT.md.
bool is_known_variable(std::string_view name);

struct NearestVariable {
  std::string_view name;
  std::size_t distance = 0;  // letters to insert, remove or change
};
NearestVariable nearest_variable(std::string_view name);

// A sentence for each variable that is set, is none of lockstep's and looks much like one. Others that begin with
// LOCKSTEP_ may be a program's own.
std::vector<std::string> misspelt_variables(const Environment& environment);

}  // namespace lockstep
