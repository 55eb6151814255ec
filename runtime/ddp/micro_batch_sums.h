// SPDX-License-Identifier: Apache-2.0
// This rank's part of the tree over fixed micro-batches: adds up the gradients of its micro-batches, one after another.
//
// Each micro-batch's gradients are written to the arena. Those of all micro-batches except the last are then kept,
// added to the sums that they complete. Each slice of the last micro-batch, when it becomes ready, gets the kept sums
// that it completes added to it, and stays in the arena. So at the end of a step the last of the rank's whole nodes is
// in the arena, and the earlier ones are here.
//
// Memory: kept() times the gradients', at most log2(micro-batches of a rank) + 1, after the gradients in the arena.
// Threads: the Reducer's.
// Failure: DeviceError.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/ddp/bucket_plan.h"
#include "runtime/ddp/gradient_memory.h"
#include "runtime/ddp/plan/micro_batch_tree.h"

namespace lockstep {

class MicroBatchSums {
 public:
  MicroBatchSums(int micro_batches, int rank, int world);

  // The number of micro-batches of all ranks.
  int micro_batches() const { return micro_batches_; }
  int micro_batches_of_this_rank() const { return static_cast<int>(merges_.size()); }
  // Whether the current micro-batch is this rank's last of the step.
  bool at_last() const { return done_ + 1 == merges_.size(); }

  // The current micro-batch's position among all ranks' micro-batches.
  int micro_batch_under_way() const { return first_ + static_cast<int>(done_); }

  // The number of sums that the rank which keeps most keeps at once: each as large as the gradients.
  std::size_t kept() const { return most_kept_; }
  // Sets the memory, which outlives this object: the gradients' `bytes`, and after them as many for each kept sum.
  void begin_in(const GradientMemory& memory, std::size_t bytes);

  // Keeps a micro-batch, not the last, which is complete in the arena.
  void keep(const BucketPlan& plan);
  // Adds the kept sums to a slice of the last micro-batch, which is complete in the arena.
  void accumulate(std::byte* slice, std::int64_t count, DType dtype) const;
  // Begins the next step, after one that is over or given up.
  void restart();

  // This rank's whole nodes when the last micro-batch is done, in order, from the place of `slice` in the arena.
  std::vector<const std::byte*> nodes(const std::byte* slice) const;

 private:
  // The place of a slice in the kept sum `index`.
  std::byte* in_sum(std::size_t index, const std::byte* slice) const;

  int micro_batches_;
  int first_;  // the first micro-batch of this rank
  std::size_t most_kept_ = 0;
  const GradientMemory* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<int> merges_;  // by micro-batch of this rank, see merges_of()
  std::size_t done_ = 0;     // the number of micro-batches of the step that are kept
  std::size_t kept_ = 0;     // the number of their sums, in the first places
};

}  // namespace lockstep
