// SPDX-License-Identifier: Apache-2.0
// Causes that name a rank of a group: its host and pid come from the roster.
//
// A cause speaks of ranks as the job counts them, in whatever group it came to be: so the job's membership, its
// launcher and every group that has the rank read the same number. Its text begins with the group's name, unless that
// is the job's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/job/cause.h"
#include "lockstep/rendezvous/roster.h"
#include "runtime/base/internal_api.h"

namespace lockstep::comm {

// `rank` and `reporter` are ranks of the roster's group; `rank` may be -1: no single one. `sequence`: as Cause has it.
LOCKSTEP_INTERNAL_API Cause cause_about(const rendezvous::Roster& roster, Cause::Kind kind, int rank, int reporter,
                                        std::string text, std::int64_t sequence = -1);

// How the job counts a rank of the group; any other number stays as it is.
LOCKSTEP_INTERNAL_API int job_rank(const rendezvous::Roster& roster, int rank);
// The rank in the group of one that the job counts so; nothing if the group has not got it.
LOCKSTEP_INTERNAL_API std::optional<int> rank_in(const rendezvous::Roster& roster, int of_job);
// "group 'split 1, color 0' (ranks 0 and 1): TEXT"; of the job's group, and where it says so already, the text alone.
LOCKSTEP_INTERNAL_API std::string named_by_group(const rendezvous::Roster& roster, std::string text);

}  // namespace lockstep::comm
