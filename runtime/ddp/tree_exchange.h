// SPDX-License-Identifier: Apache-2.0
// The part of the tree over fixed micro-batches that combines the ranks' sums, as a communication hook, for groups
// whose own sum has another order.
//
// Each rank has some whole nodes of the tree, which are the rows of an OrderedSum. A rank with fewer nodes than another
// sends padding that is not read.
//
// A bucket's all-gather starts when the next bucket does, and the last one's at once: at the same place among the
// collectives on every rank. There the host, or on a device the side stream, waits for the all-to-all, which has had
// that time.
//
// Threads: the Reducer's.
// Failure: the group's errors.
#pragma once

#include "lockstep/ddp/comm_hook.h"
#include "runtime/ddp/micro_batch_sums.h"

namespace lockstep {

// A hook for buckets in the arena of `sums`, which outlives the hook.
CommHook tree_exchange(const MicroBatchSums& sums, int world);

}  // namespace lockstep
