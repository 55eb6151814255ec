// SPDX-License-Identifier: Apache-2.0
// The tree in which the gradients of fixed micro-batches are added up: pure functions of the number of micro-batches.
//
// A node covers micro-batches [begin, end); its left child covers the largest power of two of them below their number,
// as in comm/reduction.h. An inner node adds its children.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/data/sampler.h"

namespace lockstep {

using data::MicroBatchRange;

// The first micro-batch of the right child of a node of two micro-batches or more.
int right_child(MicroBatchRange node);
// The largest nodes of the tree over `micro_batches` that lie in `run`, in order.
std::vector<MicroBatchRange> whole_nodes(int micro_batches, MicroBatchRange run);
// Whether each rank's run is one node, and the tree above these nodes is that of comm/reduction.h over the ranks: then
// the sum of the ranks' sums is the tree.
bool is_tree_of_ranks(int micro_batches, int world);

// The order in which a rank adds up its micro-batches, one after another: after micro-batch i the newest `merges[i]` of
// the kept sums are added to it, newest first, each of them its left sibling; the result is kept.
std::vector<int> merges_of(int micro_batches, MicroBatchRange run);

// The order in which the whole nodes of all ranks are added up, as DeviceRuntime::sum_rows takes it. Every rank has as
// many rows as the one with the most nodes; rows that a rank does not fill are skipped.
struct NodeOrder {
  std::size_t rows_per_rank = 0;
  std::vector<std::uint8_t> merges;  // by rank, and row
};
NodeOrder order_of_nodes(int micro_batches, int world);

}  // namespace lockstep
