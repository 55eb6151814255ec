// SPDX-License-Identifier: Apache-2.0
// MicroBatchSums adds up the gradients of this rank's fixed micro-batches, one after another, in the order of the tree
// in plan/micro_batch_tree.h. A whole node of a rank is one of the largest nodes of the tree whose micro-batches all
// belong to the rank.
//
// Each micro-batch's gradients are written to the arena. After every micro-batch except the last,
// MicroBatchSums::keep() adds the gradients to earlier kept sums, as the tree prescribes, and keeps the result. In the
// last micro-batch, accumulate() adds kept sums to each gradient in the arena, as the tree prescribes, when the
// gradient becomes ready. At the end of a step, the gradients in the arena are the sum of the rank's last whole node,
// and the kept sums that accumulate() has not added are the sums of the earlier whole nodes.
//
// Memory: the arena has room for kept() sums after the gradients, each as large as the gradients. The number kept() is
//   at most log2(micro-batches of a rank) + 1.
// Threads: only the Reducer's thread calls the functions of MicroBatchSums.
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
  // Returns true if the current micro-batch is this rank's last micro-batch of the step.
  bool at_last() const { return done_ + 1 == merges_.size(); }

  // Returns the current micro-batch's position among all ranks' micro-batches.
  int micro_batch_under_way() const { return first_ + static_cast<int>(done_); }

  // Returns the largest number of sums that any rank keeps at once. Each sum is as large as the gradients.
  std::size_t kept() const { return most_kept_; }
  // Sets the memory of the gradients and of the kept sums; the memory must outlive this object. The memory has `bytes`
  // bytes for the gradients, followed by `bytes` bytes for each kept sum.
  void begin_in(const GradientMemory& memory, std::size_t bytes);

  // Keeps the gradients of a micro-batch that is complete in the arena and is not this rank's last micro-batch of
  // the step.
  void keep(const BucketPlan& plan);
  // Adds to `slice`, a final gradient of this rank's last micro-batch in the arena, each kept sum that the tree merges
  // with the last micro-batch.
  void accumulate(std::byte* slice, std::int64_t count, DType dtype) const;
  // Prepares for the next step; call restart() after a step that is over or given up.
  void restart();

  // Returns the addresses at which the sums of this rank's whole nodes hold the elements of `slice`: an address for
  // each whole node, in order. REQUIRES: the last micro-batch is done.
  std::vector<const std::byte*> nodes(const std::byte* slice) const;

 private:
  // Returns the address at which the kept sum `index` holds the elements of `slice`.
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
