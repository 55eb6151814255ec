// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/plan/shard_tree.h"

#include <algorithm>
#include <bit>

#include "lockstep/device/device_runtime.h"

namespace lockstep {
namespace {

void collect(ShardRun node, ShardRun run, std::vector<ShardRun>& found) {
  if (node.end <= run.begin || run.end <= node.begin) return;
  if (run.begin <= node.begin && node.end <= run.end) {
    found.push_back(node);
    return;
  }
  const int middle = right_child(node);
  collect({node.begin, middle}, run, found);
  collect({middle, node.end}, run, found);
}

bool matches(int shards, int world, ShardRun node, ShardRun ranks) {
  if (ranks.count() == 1) return data::shards_of(shards, ranks.begin, world) == node;
  if (node.count() < 2) return false;
  const int middle = right_child(node);
  const int middle_rank = right_child(ranks);
  return matches(shards, world, {node.begin, middle}, {ranks.begin, middle_rank}) &&
         matches(shards, world, {middle, node.end}, {middle_rank, ranks.end});
}

// Additions that the shards of a node up to its last one have done when that one is whole.
void count_merges(ShardRun node, ShardRun run, std::vector<int>& merges) {
  if (node.count() < 2) return;
  const int middle = right_child(node);
  count_merges({node.begin, middle}, run, merges);
  count_merges({middle, node.end}, run, merges);
  ++merges[static_cast<std::size_t>(node.end - 1 - run.begin)];
}

}  // namespace

int right_child(ShardRun node) {
  return node.begin + static_cast<int>(std::bit_ceil(static_cast<unsigned>(node.count())) / 2);
}

std::vector<ShardRun> whole_nodes(int shards, ShardRun run) {
  std::vector<ShardRun> found;
  collect({0, shards}, run, found);
  return found;
}

bool is_tree_of_ranks(int shards, int world) { return matches(shards, world, {0, shards}, {0, world}); }

std::vector<int> merges_of(int shards, ShardRun run) {
  std::vector<int> merges(static_cast<std::size_t>(run.count()), 0);
  for (const ShardRun& node : whole_nodes(shards, run)) count_merges(node, run, merges);
  return merges;
}

// Inner nodes of the tree end with a node's last shard: some within the node, and one for each merge behind it.
NodeOrder order_of_nodes(int shards, int world) {
  const std::vector<int> all = merges_of(shards, {0, shards});
  std::vector<std::vector<ShardRun>> nodes;
  NodeOrder order;
  for (int rank = 0; rank < world; ++rank) {
    nodes.push_back(whole_nodes(shards, data::shards_of(shards, rank, world)));
    order.rows_per_rank = std::max(order.rows_per_rank, nodes.back().size());
  }
  for (const std::vector<ShardRun>& own : nodes) {
    for (std::size_t row = 0; row < order.rows_per_rank; ++row) {
      const int merges = row < own.size()
                             ? all[static_cast<std::size_t>(own[row].end - 1)] - merges_of(shards, own[row]).back()
                             : kSkippedRow;
      order.merges.push_back(static_cast<std::uint8_t>(merges));
    }
  }
  return order;
}

}  // namespace lockstep
