// SPDX-License-Identifier: Apache-2.0
// The ranks that keep the others from stopping when a job is to stop. Pure.
#pragma once

#include <span>
#include <string>

#include "launcher/process/rank_end.h"
#include "runtime/membership/membership_table.h"

namespace lockstep::launcher {

// Returns "rank 2 (host n, pid 5) holds the others up: the last that it started is collective 41 (all_reduce, step 4);
// ranks 0-1 have started collective 42 (all_reduce, step 5)". `unstopped` are the ranks that have not reported their
// stop; `members` are those of the job's store. Empty if there are none.
std::string describe_unstopped(std::span<const RankFacts> unstopped, int world_size,
                               std::span<const membership::MemberView> members);

}  // namespace lockstep::launcher
