// SPDX-License-Identifier: Apache-2.0
// Micro-batches: while a NoSync lives, backward() adds to this rank's gradients and sends nothing.
//
//   for (int i = 0; i < micro_batches; ++i) {
//     const auto local = ddp.no_sync(i + 1 < micro_batches);   // of all but the last: one all-reduce for all of them
//     ... forward and backward
//   }
//
// Forward and backward both belong inside. NoSyncs nest, and may outlive the DistributedDataParallel.
// Threads: the DistributedDataParallel's.
#pragma once

#include <memory>
#include <utility>

namespace lockstep {

class [[nodiscard]] NoSync {
 public:
  // Made by DistributedDataParallel::no_sync(), which counts those that live. A NoSync that is not on changes nothing.
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
