// SPDX-License-Identifier: Apache-2.0
// BackgroundWriter has a thread that copies the tensors of a state to be saved while training continues, and then
// writes the copies.
//
// A BackgroundWriter goes through the phases idle, copying, copied and writing, and then is idle again. On the
// training's thread, start() sets the phase to copying, and wait_copied() sets the phase to writing. The writer's
// thread sets the phase to copied and to idle. The lock guards only the phase. The other fields need no lock: only the
// training's thread uses these fields in the phases idle and copied, and only the writer's thread in the phases copying
// and writing.
//
// Threads: only the training's thread may call the functions of BackgroundWriter.
// Failure: start() throws SystemError if the thread can't be made; take_failure() returns the exception with which the
//   last write failed.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/checkpoint/snapshot/manifest.h"
#include "runtime/checkpoint/snapshot/series.h"
#include "runtime/snapshot/item_list.h"

namespace lockstep {

class BackgroundWriter {
 public:
  // The function that the writer's thread calls after all tensors are copied. The bytes of `items` are the copies. If
  // copying the tensors has failed, `items` is empty and `why_not` is the exception; otherwise `why_not` is null.
  using Write = std::function<void(checkpoint::Manifest head, std::span<const checkpoint::ItemSource> items,
                                   const std::exception_ptr& why_not)>;

  explicit BackgroundWriter(Write write) : write_(std::move(write)) {}
  // Waits until the started state is written.
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  // Returns whether a state is being copied or written.
  bool is_busy() const;
  // Starts to write `items` as a snapshot. start() itself copies the tensors that may change before wait_copied(), and
  // leaves the other tensors to the writer's thread. REQUIRES: !is_busy().
  void start(checkpoint::Manifest head, std::vector<CapturedItem> items);
  // Blocks until the writer's thread has copied all tensors, so that the training may write the tensors again. If a
  // tensor changed while the writer's thread copied the tensors, the snapshot is not saved.
  void wait_copied() noexcept;
  void wait();
  // Returns the exception with which the last write failed, and forgets the exception. Returns null if the last write
  // has not failed. REQUIRES: !is_busy().
  std::exception_ptr take_failure() { return std::exchange(failure_, nullptr); }

 private:
  enum class Phase { idle, copying, copied, writing, ended };
  // A Copy describes how one tensor of `items_` is copied. After start(), `tensor->bytes` refers to the copied bytes.
  struct Copy {
    std::string_view item;
    SnapshotTensor* tensor = nullptr;
    std::span<const std::byte> from;
    std::size_t offset = 0;  // the place in memory_
    std::uint64_t version = 0;
  };

  void run();
  void set_phase(Phase phase);
  void copy(const Copy& copy);
  void write_all();
  std::vector<checkpoint::ItemSource> make_sources();
  std::string changed_tensor() const;

  const Write write_;
  checkpoint::Manifest head_;
  std::vector<CapturedItem> items_;
  std::vector<Copy> copies_;
  std::vector<Copy> later_;              // the copies that the writer's thread makes
  std::unique_ptr<std::byte[]> memory_;  // the memory of the copies, kept for the next state
  std::size_t memory_bytes_ = 0;
  std::exception_ptr not_copied_;  // the reason why the copies are not the state
  std::exception_ptr failure_;

  mutable Mutex mutex_;
  Condition changed_;
  Phase phase_ GUARDED_BY(mutex_) = Phase::idle;
  std::thread thread_;
};

}  // namespace lockstep
