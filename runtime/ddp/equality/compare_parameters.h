// SPDX-License-Identifier: Apache-2.0
// Checks that all ranks train the same model, once, before the first gradient.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/bucket_plan.h"
#include "runtime/base/internal_api.h"

namespace lockstep {

// Another option that must be equal on all ranks, as text: {"the bucket options", "cap_bytes 1000"}. The names are
// equal.
struct ComparedOption {
  std::string_view name;
  std::string value;
};

// Collective. Returns if options and specs are equal on all ranks. Otherwise throws the same Mismatch on every rank:
// the first option or parameter that differs, its values, and the ranks with each.
//
// It uses collectives: one hash per rank, and whole lists only if the hashes differ. So a rank that leaves, fails or
// makes another call instead is named as in any collective.
//
// `remedy` is the Mismatch's advice, besides building the same model.
LOCKSTEP_INTERNAL_API void compare_parameters(ProcessGroup& group, std::span<const ParameterSpec> specs,
                                              std::span<const ComparedOption> options = {},
                                              std::string_view remedy = {});

// A text of the ranks' values: "ranks 0 and 2 have 1; rank 1 has 7"; empty if all are the same.
std::string describe_values(std::span<const std::string> by_rank);

// The comparison itself, a pure function: `lists[r]` is rank r's list, the options' values and then the parameters.
// Returns the first difference as a sentence; empty if all are equal.
std::string first_difference(std::span<const ComparedOption> options, std::span<const std::vector<std::string>> lists);

}  // namespace lockstep
