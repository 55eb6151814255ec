// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/plan/micro_batch_tree.h"

#include <algorithm>
#include <bit>

#include "lockstep/device/device_runtime.h"

namespace lockstep {
namespace {

void collect(MicroBatchRange node, MicroBatchRange run, std::vector<MicroBatchRange>& found) {
  if (node.end <= run.begin || run.end <= node.begin) return;
  if (run.begin <= node.begin && node.end <= run.end) {
    found.push_back(node);
    return;
  }
  const int middle = right_child(node);
  collect({node.begin, middle}, run, found);
  collect({middle, node.end}, run, found);
}

bool matches(int micro_batches, int world, MicroBatchRange node, MicroBatchRange ranks) {
  if (ranks.count() == 1) return data::micro_batches_of(micro_batches, ranks.begin, world) == node;
  if (node.count() < 2) return false;
  const int middle = right_child(node);
  const int middle_rank = right_child(ranks);
  return matches(micro_batches, world, {node.begin, middle}, {ranks.begin, middle_rank}) &&
         matches(micro_batches, world, {middle, node.end}, {middle_rank, ranks.end});
}

// For each inner node of the subtree at `node`, adds 1 to the number in `merges` that belongs to the last micro-batch
// of the inner node.
void count_merges(MicroBatchRange node, MicroBatchRange run, std::vector<int>& merges) {
  if (node.count() < 2) return;
  const int middle = right_child(node);
  count_merges({node.begin, middle}, run, merges);
  count_merges({middle, node.end}, run, merges);
  ++merges[static_cast<std::size_t>(node.end - 1 - run.begin)];
}

}  // namespace

int right_child(MicroBatchRange node) {
  return node.begin + static_cast<int>(std::bit_ceil(static_cast<unsigned>(node.count())) / 2);
}

std::vector<MicroBatchRange> whole_nodes(int micro_batches, MicroBatchRange run) {
  std::vector<MicroBatchRange> found;
  collect({0, micro_batches}, run, found);
  return found;
}

bool is_tree_of_ranks(int micro_batches, int world) {
  return matches(micro_batches, world, {0, micro_batches}, {0, world});
}

std::vector<int> merges_of(int micro_batches, MicroBatchRange run) {
  std::vector<int> merges(static_cast<std::size_t>(run.count()), 0);
  for (const MicroBatchRange& node : whole_nodes(micro_batches, run)) count_merges(node, run, merges);
  return merges;
}

// The number of merges after a whole node is the number of inner nodes of the tree that end with the whole node's last
// micro-batch; the whole node and the nodes within the whole node do not count.
NodeOrder order_of_nodes(int micro_batches, int world) {
  const std::vector<int> all = merges_of(micro_batches, {0, micro_batches});
  std::vector<std::vector<MicroBatchRange>> nodes;
  NodeOrder order;
  for (int rank = 0; rank < world; ++rank) {
    nodes.push_back(whole_nodes(micro_batches, data::micro_batches_of(micro_batches, rank, world)));
    order.rows_per_rank = std::max(order.rows_per_rank, nodes.back().size());
  }
  for (const std::vector<MicroBatchRange>& own : nodes) {
    for (std::size_t row = 0; row < order.rows_per_rank; ++row) {
      const int merges =
          row < own.size() ? all[static_cast<std::size_t>(own[row].end - 1)] - merges_of(micro_batches, own[row]).back()
                           : kSkippedRow;
      order.merges.push_back(static_cast<std::uint8_t>(merges));
    }
  }
  return order;
}

}  // namespace lockstep
