// SPDX-License-Identifier: Apache-2.0
// The part of the tree over fixed micro-batches that lies between the ranks, as a communication hook, for groups whose
// own sum adds in another order.
//
// Each rank has some whole nodes of the tree, which are the rows of an OrderedSum. A rank with fewer nodes than another
// sends padding that is not read.
//
// A bucket's all-gather is started when the next bucket is, and the last one's at once: at the same place among the
// collectives on every rank. There the host waits for the all-to-all, which had that time; on a device the side stream.
//
// Threads: the Reducer's. Failure: the group's errors.
#pragma once

#include "lockstep/ddp/comm_hook.h"
#include "runtime/ddp/micro_batch_sums.h"

namespace lockstep {

// For buckets in the arena of `sums`, which outlives the hook.
CommHook tree_exchange(const MicroBatchSums& sums, int world);

}  // namespace lockstep
