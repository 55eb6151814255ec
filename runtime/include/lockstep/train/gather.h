// SPDX-License-Identifier: Apache-2.0
// gather_rows() and all_gather_rows() gather the rows of all ranks on one rank or on every rank. For means and sums
// over all ranks use lockstep/metrics/metrics.h.
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Returns the rows (dimension 0) of all ranks, in rank order, on rank `root`, and an undefined tensor on the other
// ranks. A call of gather_rows() joins the rows that data::chunk has divided among the ranks. The call is collective
// and blocking. Each rank may have a different number of rows, or no rows. A backward does not pass gradients through
// gather_rows(). Throws Mismatch on every rank if the ranks' rows differ in dtype, or in an extent other than that of
// dimension 0.
LOCKSTEP_API Tensor gather_rows(const Tensor& rows, ProcessGroup& group, int root = 0);
// Returns the rows of all ranks, in rank order, on every rank; in all other respects all_gather_rows()
// behaves like gather_rows().
LOCKSTEP_API Tensor all_gather_rows(const Tensor& rows, ProcessGroup& group);

}  // namespace lockstep
