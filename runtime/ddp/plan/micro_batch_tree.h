// SPDX-License-Identifier: Apache-2.0
// The functions in this file describe the tree in which the gradients of fixed micro-batches are added up. The tree
// depends only on the number of micro-batches.
//
// A node covers micro-batches [begin, end). The left child of a node of n micro-batches covers the first p of these
// micro-batches, where p is the largest power of two below n, as in comm/reduction.h. An inner node is the sum of its
// two children.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/data/sampler.h"

namespace lockstep {

using data::MicroBatchRange;

// Returns the first micro-batch of the right child of `node`, which must have two micro-batches or more.
int right_child(MicroBatchRange node);
// Returns, in order, the largest nodes that lie completely in `run`, in the tree over `micro_batches` micro-batches.
std::vector<MicroBatchRange> whole_nodes(int micro_batches, MicroBatchRange run);
// Returns true if each rank's micro-batches form exactly one node, and the tree above these nodes is the tree of
// comm/reduction.h over the ranks. If is_tree_of_ranks() is true, the group's all-reduce of the ranks' sums adds in the
// order of the tree.
bool is_tree_of_ranks(int micro_batches, int world);

// Returns the order in which a rank adds up the micro-batches in `run`: a number `merges[i]` for each micro-batch i of
// `run`. After micro-batch i, the rank adds the newest `merges[i]` kept sums to the micro-batch's gradients, beginning
// with the newest kept sum. Each kept sum that the rank adds is the left sibling, in the tree, of the sum so far. The
// resulting sum is kept.
std::vector<int> merges_of(int micro_batches, MicroBatchRange run);

// NodeOrder is the order in which the whole nodes of all ranks are added up, in the form that DeviceRuntime::sum_rows
// takes. Every rank has an equal number of rows, which is the largest number of whole nodes of any rank;
// DeviceRuntime::sum_rows skips the rows that hold no node.
struct NodeOrder {
  std::size_t rows_per_rank = 0;
  std::vector<std::uint8_t> merges;  // the merges after each row, by rank and row
};
NodeOrder order_of_nodes(int micro_batches, int world);

}  // namespace lockstep
