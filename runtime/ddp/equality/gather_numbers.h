// SPDX-License-Identifier: Apache-2.0
// gather_numbers() gathers a few numbers of every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Collective and blocking. Returns the numbers of every rank, in rank order; each rank passes the same count.
std::vector<std::uint64_t> gather_numbers(ProcessGroup& group, std::vector<std::uint64_t> mine);

}  // namespace lockstep
