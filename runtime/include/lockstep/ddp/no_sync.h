// SPDX-License-Identifier: Apache-2.0
// NoSync is a scope for micro-batches: while a NoSync lives, backward() adds to this rank's gradients and
// sends nothing.
//
//   for (int i = 0; i < micro_batches; ++i) {
//     const auto local = ddp.no_sync(i + 1 < micro_batches);   // on except for the last micro-batch
//     ... forward and backward
//   }
//
// Forward and backward must both run while the NoSync lives. NoSyncs nest, and may outlive the DistributedDataParallel.
// Threads: only the thread that uses the DistributedDataParallel.
#pragma once

#include <memory>
#include <utility>

namespace lockstep {

class [[nodiscard]] NoSync {
 public:
  // Increments *count while this object lives. DistributedDataParallel::no_sync() calls this constructor, and `count`
  // is the number of living NoSyncs. A NoSync with is_on false changes nothing.
  NoSync(std::shared_ptr<int> count, bool is_on) : count_(is_on ? std::move(count) : nullptr) {
    if (count_) ++*count_;
  }
  ~NoSync() {
    if (count_) --*count_;
  }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<int> count_;
};

}  // namespace lockstep
