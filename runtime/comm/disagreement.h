// SPDX-License-Identifier: Apache-2.0
// A difference between the ranks that every rank has found alike: of none of them it can be said that it failed.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/comm/process_group.h"
#include "runtime/base/internal_api.h"

namespace lockstep::comm {

// For every rank, with the same text: waits until all have it, tells the job's launcher that the ranks disagree, and
// throws Mismatch. `rank`: the only one that differs from the others, where more than two are compared; else -1.
// `step`: as Cause has it. The group stays usable.
[[noreturn]] LOCKSTEP_INTERNAL_API void throw_disagreement(ProcessGroup& group, std::string text, int rank = -1,
                                                           std::int64_t step = -1);

}  // namespace lockstep::comm
