// SPDX-License-Identifier: Apache-2.0
// NoSync is the scope of micro-batches: while one lives, backward() adds to this rank's gradients and sends nothing.
//
//   for (int i = 0; i < micro_batches; ++i) {
//     const auto local = ddp.no_sync(i + 1 < micro_batches);   // on for all but the last: one all-reduce for all
//     ... forward and backward
//   }
//
// Forward and backward both run while it lives. NoSyncs nest, and may outlive the DistributedDataParallel.
// Threads: the DistributedDataParallel's.
#pragma once

#include <memory>
#include <utility>

namespace lockstep {

class [[nodiscard]] NoSync {
 public:
  // Made by DistributedDataParallel::no_sync(), which counts the living ones. A NoSync with is_on false changes
  // nothing.
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
