// SPDX-License-Identifier: Apache-2.0
// Gathers the rows of all ranks on one rank, or on every rank. lockstep/metrics/metrics.h has means and sums over
// all ranks.
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Returns every rank's rows (dimension 0) in rank order on rank `root`, and an undefined tensor on the other ranks: the
// opposite of the split by data::chunk. The call is collective and blocking. Ranks may have different numbers of rows,
// also none. Backward does not go through gather_rows(). Throws Mismatch, on every rank, if the rows differ in shape
// or dtype.
LOCKSTEP_API Tensor gather_rows(const Tensor& rows, ProcessGroup& group, int root = 0);
// Returns every rank's rows on every rank, in all other respects as gather_rows() does.
LOCKSTEP_API Tensor all_gather_rows(const Tensor& rows, ProcessGroup& group);

}  // namespace lockstep
