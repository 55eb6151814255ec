// SPDX-License-Identifier: Apache-2.0
// Defines NoSync, a guard for gradient accumulation over micro-batches: while a NoSync lives, backward() adds to this
// rank's gradients and sends nothing to other ranks.
//
//   for (int i = 0; i < micro_batches; ++i) {
//     const auto local = ddp.no_sync(i + 1 < micro_batches);   // on except for the last micro-batch
//     ... forward and backward
//   }
//
// Forward and backward must both run while the NoSync lives. NoSyncs nest, and may outlive the DistributedDataParallel.
// Threads: only the thread that uses the DistributedDataParallel may make or destroy a NoSync.
#pragma once

#include <memory>
#include <utility>

namespace lockstep {

class [[nodiscard]] NoSync {
 public:
  // Increments *count, the number of living NoSyncs; the destructor decrements *count.
  // DistributedDataParallel::no_sync() calls this constructor. If `is_on` is false, the NoSync changes nothing.
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
