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

// ComparedOption is the text of an option that must be equal on all ranks, such as {"the bucket options", "cap_bytes
// 1000"}. All ranks use equal names.
struct ComparedOption {
  std::string_view name;
  std::string value;
};

// Collective. Compares `options` and `specs` over the ranks. Throws the same Mismatch on every rank if an option or a
// parameter is not equal on all ranks. The Mismatch names the first option or parameter that differs between ranks, and
// says which ranks have which value.
//
// The ranks exchange a hash of `options` and `specs`, and exchange the whole lists only if the hashes differ. If a rank
// leaves, fails or starts another collective instead, compare_parameters() throws an error on the other ranks; the
// error names the rank.
//
// The message of the Mismatch advises to build the same model on every rank, and adds `remedy` to this advice.
LOCKSTEP_INTERNAL_API void compare_parameters(ProcessGroup& group, std::span<const ParameterSpec> specs,
                                              std::span<const ComparedOption> options = {},
                                              std::string_view remedy = {});

// Returns a text that lists the ranks' values, such as "ranks 0 and 2 have 1; rank 1 has 7". The text is empty if all
// values are equal.
std::string describe_values(std::span<const std::string> by_rank);

// Compares the ranks' lists; a pure function. `lists[r]` is the list of rank r: the values of all options, followed by
// a text for each parameter. Returns the first difference as a sentence, or an empty text if all lists are equal.
std::string first_difference(std::span<const ComparedOption> options, std::span<const std::vector<std::string>> lists);

}  // namespace lockstep
