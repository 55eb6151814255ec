// SPDX-License-Identifier: Apache-2.0
// tree_exchange() returns a communication hook that combines the ranks' sums of fixed micro-batches in the order of the
// tree. Groups whose own sum has another order need the hook.
//
// Each rank has some whole nodes of the tree, which are the rows of an OrderedSum. A rank with fewer nodes than another
// rank sends padding, which no rank reads.
//
// A bucket's all-gather starts when the next bucket starts; the last bucket's all-gather starts at once. The all-gather
// thus has the same place among the collectives on every rank. Before the all-gather the host, or on a device the side
// stream, waits for the bucket's all-to-all, which has run meanwhile.
//
// Threads: only the Reducer's thread calls the hook.
// Failure: the hook throws the group's errors.
#pragma once

#include "lockstep/ddp/comm_hook.h"
#include "runtime/ddp/micro_batch_sums.h"

namespace lockstep {

// Returns a hook for buckets in the arena of `sums`. `sums` must outlive the hook.
CommHook tree_exchange(const MicroBatchSums& sums, int world);

}  // namespace lockstep
