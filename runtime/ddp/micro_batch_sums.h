// SPDX-License-Identifier: Apache-2.0
// This rank's part of the tree over fixed micro-batches: adds up the gradients of its micro-batches, one micro-batch
// after the other.
//
// Each micro-batch's gradients are written to the arena. The gradients of all but the last micro-batch are then kept,
// added to the sums that they complete. Each slice of the last micro-batch, as it becomes ready, gets the kept sums
// that it completes added to it, and stays in the arena. So a step ends with the last of the rank's whole nodes in the
// arena and the ones before it here.
//
// Memory: kept() times the gradients', at most log2(micro-batches of a rank) + 1, behind these in the arena.
// Threads: the Reducer's. Failure: DeviceError.
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

  // Micro-batches of all ranks.
  int micro_batches() const { return micro_batches_; }
  int micro_batches_of_this_rank() const { return static_cast<int>(merges_.size()); }
  // Whether the current micro-batch is this rank's last of the step.
  bool at_last() const { return done_ + 1 == merges_.size(); }

  // Among all ranks' micro-batches.
  int micro_batch_under_way() const { return first_ + static_cast<int>(done_); }

  // Sums that the rank which keeps most keeps at once: each as large as the gradients.
  std::size_t kept() const { return most_kept_; }
  // Sets the memory, which outlives this object: the gradients' `bytes`, and behind them as many for each kept sum.
  void begin_in(const GradientMemory& memory, std::size_t bytes);

  // A micro-batch but the last is complete in the arena.
  void keep(const BucketPlan& plan);
  // A slice of the last micro-batch is complete in the arena.
  void accumulate(std::byte* slice, std::int64_t count, DType dtype) const;
  // The step is over, or given up.
  void restart();

  // When the last micro-batch is done: this rank's whole nodes, in order, from the place of `slice` in the arena.
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
  std::size_t done_ = 0;     // micro-batches of the step that are kept
  std::size_t kept_ = 0;     // sums of them, in the first places
};

}  // namespace lockstep
