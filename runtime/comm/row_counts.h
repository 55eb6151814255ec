// SPDX-License-Identifier: Apache-2.0
// How many rows each rank brings to a collective whose parts may be of different length.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "runtime/base/internal_api.h"

namespace lockstep::comm {

// Collective and blocking. Every rank's `rows`, by rank. `kind` says what a row is, its dtype and shape: Mismatch, on
// every rank and before anything of them travels, names the first rank that has another one than rank 0; the group goes
// on. `operation` is for messages. Buffers of a group on a device are host memory here.
LOCKSTEP_INTERNAL_API std::vector<std::int64_t> row_counts(ProcessGroup& group, std::string_view operation,
                                                           std::int64_t rows, const std::string& kind);

}  // namespace lockstep::comm
