// SPDX-License-Identifier: Apache-2.0
// tree_exchange() returns a communication hook that combines the ranks' sums of fixed micro-batches in the order of the
// tree in plan/micro_batch_tree.h. The hook of tree_exchange() is for groups whose own all-reduce does not add in the
// order of the tree.
//
// The whole nodes of a rank are the largest nodes of the tree whose micro-batches all belong to the rank. Each rank
// passes the sums of its whole nodes to an OrderedSum as rows. A rank with fewer whole nodes than another rank sends
// padding instead of the missing rows; no rank reads the padding.
//
// A bucket's all-gather starts when the next bucket starts, so that every rank starts its collectives in one order. The
// last bucket's all-gather starts at once. Before a bucket's all-gather, the host (on a device, the side stream) waits
// for the bucket's all-to-all, which began when the bucket started.
//
// Threads: only the Reducer's thread calls the hook.
// Failure: the hook throws the group's errors.
#pragma once

#include "lockstep/ddp/comm_hook.h"
#include "runtime/ddp/micro_batch_sums.h"

namespace lockstep {

// Returns a hook that sums each bucket over the ranks, from this rank's sums of micro-batches in `sums`. `sums` must
// outlive the hook.
CommHook tree_exchange(const MicroBatchSums& sums, int world);

}  // namespace lockstep
