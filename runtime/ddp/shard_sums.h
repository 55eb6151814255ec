// SPDX-License-Identifier: Apache-2.0
// This rank's part of the tree over virtual shards: adds up the gradients of its shards, one shard after the other.
//
// Each shard's gradients are written to the arena. The gradients of all but the last shard are then kept, added to the
// sums that they complete. Each slice of the last shard, as it becomes ready, gets the kept sums that it completes
// added to it, and stays in the arena. So a step ends with the last of the rank's whole nodes in the arena and the ones
// before it here.
//
// Memory: at most log2(shards of this rank) + 1 arenas, taken in the first step.
// Threads: the Reducer's. Failure: std::bad_alloc.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/ddp/bucket_plan.h"
#include "runtime/ddp/plan/shard_tree.h"

namespace lockstep {

class ShardSums {
 public:
  ShardSums(int shards, int rank, int world);

  // Shards of all ranks.
  int shards() const { return shards_; }
  int shards_of_this_rank() const { return static_cast<int>(merges_.size()); }
  // Whether the current shard is this rank's last of the step.
  bool at_last() const { return done_ + 1 == merges_.size(); }

  // Among all ranks' shards.
  int shard_under_way() const { return first_ + static_cast<int>(done_); }

  // Sets the memory to which gradients are written, which outlives this object. Call it first.
  void begin_at(const std::byte* arena) { arena_ = arena; }

  // A shard but the last is complete in the arena.
  void keep(const BucketPlan& plan, std::span<const ParameterSpec> specs);
  // A slice of the last shard is complete in the arena.
  void accumulate(std::byte* slice, std::size_t count, DType dtype) const;
  // The step is over, or given up.
  void restart();

  // When the last shard is done: this rank's whole nodes, in order, from the place of `slice` in the arena.
  std::vector<const std::byte*> nodes(const std::byte* slice) const;

 private:
  struct Deleter {
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte[], Deleter>;

  int shards_;
  int first_;  // the first shard of this rank
  const std::byte* arena_ = nullptr;
  std::vector<int> merges_;  // by shard of this rank, see merges_of()
  std::size_t done_ = 0;     // shards of the step that are kept
  std::size_t kept_ = 0;     // sums of them, in the first of memory_
  std::vector<Memory> memory_;
};

}  // namespace lockstep
