// SPDX-License-Identifier: Apache-2.0
// compare_parameters() checks once, before the first gradient, that all ranks train the same model.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/bucket_plan.h"
#include "runtime/base/internal_api.h"

namespace lockstep {

// ComparedOption is an option that must be equal on all ranks, as text: {"the bucket options", "cap_bytes 1000"}. All
// ranks use equal names.
struct ComparedOption {
  std::string_view name;
  std::string value;
};

// Collective. Returns if `options` and `specs` are equal on all ranks. Otherwise throws the same Mismatch on every
// rank. The Mismatch names the first option or parameter that differs, its values, and the ranks with each value.
//
// The ranks exchange a hash by a collective, and whole lists only if the hashes differ. An error names a rank that
// leaves, fails or makes another call instead, as in any collective.
//
// `remedy` is further advice in the Mismatch, after the advice to build the same model.
LOCKSTEP_INTERNAL_API void compare_parameters(ProcessGroup& group, std::span<const ParameterSpec> specs,
                                              std::span<const ComparedOption> options = {},
                                              std::string_view remedy = {});

// Returns a text of the ranks' values: "ranks 0 and 2 have 1; rank 1 has 7". The text is empty if all values are equal.
std::string describe_values(std::span<const std::string> by_rank);

// Compares the ranks' lists; a pure function. `lists[r]` is rank r's list: the options' values and then the parameters.
// Returns the first difference as a sentence, or an empty text if all lists are equal.
std::string first_difference(std::span<const ComparedOption> options, std::span<const std::vector<std::string>> lists);

}  // namespace lockstep
