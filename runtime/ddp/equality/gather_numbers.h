// SPDX-License-Identifier: Apache-2.0
// A few numbers of every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Collective and blocking: as many numbers of every rank, in rank order.
std::vector<std::uint64_t> gather_numbers(ProcessGroup& group, std::vector<std::uint64_t> mine);

}  // namespace lockstep
