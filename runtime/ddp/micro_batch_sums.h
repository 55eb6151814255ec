// SPDX-License-Identifier: Apache-2.0
// MicroBatchSums is this rank's part of the tree over fixed micro-batches: it adds up the gradients of this rank's
// micro-batches, one after another.
//
// Each micro-batch's gradients are written to the arena. keep() keeps the gradients of every micro-batch except the
// last, added to the kept sums that they complete. When a slice of the last micro-batch becomes ready, accumulate()
// adds to the slice the kept sums that the slice completes. The slice stays in the arena. At the end of a step the last
// of the rank's whole nodes is thus in the arena, and the earlier nodes are kept sums.
//
// Memory: kept() sums, each as large as the gradients, lie after the gradients in the arena. kept() is at most
//   log2(micro-batches of a rank) + 1.
// Threads: only the Reducer's thread calls this class.
// Failure: throws DeviceError.
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

  // Returns the number of micro-batches of all ranks.
  int micro_batches() const { return micro_batches_; }
  int micro_batches_of_this_rank() const { return static_cast<int>(merges_.size()); }
  // Returns whether the current micro-batch is this rank's last micro-batch of the step.
  bool at_last() const { return done_ + 1 == merges_.size(); }

  // Returns the current micro-batch's position among all ranks' micro-batches.
  int micro_batch_under_way() const { return first_ + static_cast<int>(done_); }

  // Returns the largest number of sums that any rank keeps at once. Each sum is as large as the gradients.
  std::size_t kept() const { return most_kept_; }
  // Sets the memory, which must outlive this object. The memory has `bytes` for the gradients, followed by `bytes` for
  // each kept sum.
  void begin_in(const GradientMemory& memory, std::size_t bytes);

  // Keeps a micro-batch that is complete in the arena and is not the step's last.
  void keep(const BucketPlan& plan);
  // Adds to a complete slice of the last micro-batch, in the arena, the kept sums that the slice completes.
  void accumulate(std::byte* slice, std::int64_t count, DType dtype) const;
  // Begins the next step, after a step that is over or given up.
  void restart();

  // Returns where each of this rank's whole nodes, in order, has the elements of `slice`. REQUIRES: the last
  // micro-batch is done.
  std::vector<const std::byte*> nodes(const std::byte* slice) const;

 private:
  // Returns the place of a slice in the kept sum `index`.
  std::byte* in_sum(std::size_t index, const std::byte* slice) const;

  int micro_batches_;
  int first_;  // the first micro-batch of this rank
  std::size_t most_kept_ = 0;
  const GradientMemory* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<int> merges_;  // the merges after each micro-batch of this rank; see merges_of()
  std::size_t done_ = 0;     // the number of micro-batches of the step that are kept
  std::size_t kept_ = 0;     // the number of kept sums, which have the first places
};

}  // namespace lockstep
