// SPDX-License-Identifier: Apache-2.0
// These functions describe the tree in which the gradients of fixed micro-batches are added up. The tree is a pure
// function of the number of micro-batches.
//
// A node covers micro-batches [begin, end). The left child of a node of n micro-batches covers its first p, where p is
// the largest power of two below n, as in comm/reduction.h. An inner node adds its children.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/data/sampler.h"

namespace lockstep {

using data::MicroBatchRange;

// Returns the first micro-batch of the right child of a node of two micro-batches or more.
int right_child(MicroBatchRange node);
// Returns, in order, the largest nodes of the tree over `micro_batches` that lie in `run`.
std::vector<MicroBatchRange> whole_nodes(int micro_batches, MicroBatchRange run);
// Returns whether each rank's run is one node, and the tree above these nodes is the tree of comm/reduction.h over the
// ranks. If so, the group's sum of the ranks' sums follows the tree.
bool is_tree_of_ranks(int micro_batches, int world);

// Returns the order in which a rank adds up its micro-batches, one after another. After micro-batch i the newest
// `merges[i]` kept sums are added to it, newest first; each kept sum is the left sibling of the sum so far. The result
// is kept.
std::vector<int> merges_of(int micro_batches, MicroBatchRange run);

// NodeOrder is the order in which the whole nodes of all ranks are added up, in the form of DeviceRuntime::sum_rows.
// Every rank has as many rows as the rank with the most nodes; rows that a rank does not fill are skipped.
struct NodeOrder {
  std::size_t rows_per_rank = 0;
  std::vector<std::uint8_t> merges;  // the merges after each row, by rank and row
};
NodeOrder order_of_nodes(int micro_batches, int world);

}  // namespace lockstep
