// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/micro_batch_sums.h"

#include <algorithm>

namespace lockstep {
namespace {

// Returns the largest number of sums that a rank keeps at once, where `merges` is merges_of() for the rank's
// micro-batches. The rank's last micro-batch needs no kept sum, because its gradients stay in their slots.
std::size_t most_kept(const std::vector<int>& merges) {
  std::size_t kept = 0, most = 0;
  for (std::size_t i = 0; i + 1 < merges.size(); ++i) {
    kept = kept + 1 - static_cast<std::size_t>(merges[i]);
    most = std::max(most, kept);
  }
  return most;
}

}  // namespace

MicroBatchSums::MicroBatchSums(int micro_batches, int rank, int world)
    : micro_batches_(micro_batches),
      first_(data::micro_batches_of(micro_batches, rank, world).begin),
      merges_(merges_of(micro_batches, data::micro_batches_of(micro_batches, rank, world))) {
  for (int r = 0; r < world; ++r) {
    most_kept_ =
        std::max(most_kept_, most_kept(merges_of(micro_batches, data::micro_batches_of(micro_batches, r, world))));
  }
}

void MicroBatchSums::begin_in(const GradientMemory& memory, std::size_t bytes) {
  memory_ = &memory;
  bytes_ = bytes;
}

std::byte* MicroBatchSums::in_sum(std::size_t index, const std::byte* slice) const {
  return memory_->at((1 + index) * bytes_ + static_cast<std::size_t>(slice - memory_->at(0)));
}

void MicroBatchSums::keep(const BucketPlan& plan) {
  const int merges = merges_[done_];
  if (merges == 0) memory_->copy(in_sum(kept_, memory_->at(0)), memory_->at(0), bytes_);
  for (const Bucket& bucket : plan.buckets) {
    const std::byte* const slice = memory_->at(bucket.offset);
    const std::byte* newest = slice;
    for (int merge = 1; merge <= merges; ++merge) {
      std::byte* const left = in_sum(kept_ - static_cast<std::size_t>(merge), slice);
      memory_->add(left, newest, left, bucket.count, bucket.dtype);
      newest = left;
    }
  }
  kept_ = kept_ + 1 - static_cast<std::size_t>(merges);
  ++done_;
}

void MicroBatchSums::accumulate(std::byte* slice, std::int64_t count, DType dtype) const {
  for (int merge = 1; merge <= merges_[done_]; ++merge) {
    memory_->add(in_sum(kept_ - static_cast<std::size_t>(merge), slice), slice, slice, count, dtype);
  }
}

void MicroBatchSums::restart() {
  done_ = 0;
  kept_ = 0;
}

std::vector<const std::byte*> MicroBatchSums::nodes(const std::byte* slice) const {
  std::vector<const std::byte*> nodes;
  for (std::size_t i = 0; i + static_cast<std::size_t>(merges_[done_]) < kept_; ++i) {
    nodes.push_back(in_sum(i, slice));
  }
  nodes.push_back(slice);
  return nodes;
}

}  // namespace lockstep
