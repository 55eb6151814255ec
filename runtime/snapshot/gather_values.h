// SPDX-License-Identifier: Apache-2.0
// Values of every rank.
#pragma once

#include <vector>

#include "lockstep/checkpoint/snapshot_value.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Collective: every rank's, in rank order, on every rank.
std::vector<checkpoint::SnapshotValues> gather_values(ProcessGroup& group, const checkpoint::SnapshotValues& own);

}  // namespace lockstep
