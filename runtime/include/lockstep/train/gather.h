// SPDX-License-Identifier: Apache-2.0
// Gathers the rows of all ranks on one rank, or on all. lockstep/metrics/metrics.h has means and sums over all ranks.
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Collective and blocking. Rank `root` gets every rank's rows (dimension 0) in rank order, the other ranks an undefined
// tensor: the opposite of the split by data::chunk. Ranks may have different numbers of rows, also none. Backward does
// not go through it. Mismatch, on every rank, if the rows differ in shape or dtype.
LOCKSTEP_API Tensor gather_rows(const Tensor& rows, ProcessGroup& group, int root = 0);
// The same for every rank.
LOCKSTEP_API Tensor all_gather_rows(const Tensor& rows, ProcessGroup& group);

}  // namespace lockstep
