// SPDX-License-Identifier: Apache-2.0
// Causes that name a rank of a group: its host and pid come from the roster.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/base/cause.h"
#include "lockstep/rendezvous/roster.h"
#include "runtime/base/internal_api.h"

namespace lockstep::comm {

// `rank` and `reporter` are ranks of the roster; `rank` may be -1: no single one. `sequence`: as Cause has it.
LOCKSTEP_INTERNAL_API Cause cause_about(const rendezvous::Roster& roster, Cause::Kind kind, int rank, int reporter,
                                        std::string text, std::int64_t sequence = -1);

}  // namespace lockstep::comm
