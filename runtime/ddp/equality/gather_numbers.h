// SPDX-License-Identifier: Apache-2.0
// gather_numbers() sends a few numbers of each rank to all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Collective and blocking. Returns the numbers of all ranks, in rank order. Every rank must pass the same count
// of numbers.
std::vector<std::uint64_t> gather_numbers(ProcessGroup& group, std::vector<std::uint64_t> mine);

}  // namespace lockstep
