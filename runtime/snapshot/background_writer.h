// SPDX-License-Identifier: Apache-2.0
// A thread that copies a state's tensors while training continues, and then writes them.
//
// idle -> start() -> copying -> copied -> wait_copied() -> writing -> idle: the training's thread makes the first and
// the third step, this thread the others. In each phase the fields other than the phase belong to one of the two
// threads, so the lock guards only the phase: they belong to the training's thread in idle and copied, to this thread
// in copying and writing.
//
// Threads: the training's thread calls it.
// Failure: start() throws SystemError if no thread can be made; take_failure() returns an exception of the writing.
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
  // Called on the thread after all tensors are copied; the sources' bytes are the copies. `why_not` is null, or the
  // reason why there are no sources.
  using Write = std::function<void(checkpoint::Manifest head, std::span<const checkpoint::ItemSource> items,
                                   const std::exception_ptr& why_not)>;

  explicit BackgroundWriter(Write write) : write_(std::move(write)) {}
  // Waits until the started state is written.
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  // Whether a state is being copied or written.
  bool is_busy() const;
  // Starts to write a state; not while busy. Copies the tensors that can't wait, and leaves the other tensors to the
  // thread.
  void start(checkpoint::Manifest head, std::vector<CapturedItem> items);
  // Blocks until the training may write the tensors again. If a tensor was written meanwhile, the started state is not
  // saved.
  void wait_copied() noexcept;
  void wait();
  // The failure of the last state, once; null if it was written. Not while busy.
  std::exception_ptr take_failure() { return std::exchange(failure_, nullptr); }

 private:
  enum class Phase { idle, copying, copied, writing, ended };
  // A copy of a tensor of `items_`, which has its bytes from start() on.
  struct Copy {
    std::string_view item;
    SnapshotTensor* tensor = nullptr;
    std::span<const std::byte> from;
    std::size_t offset = 0;  // place in memory_
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
  std::vector<Copy> later_;              // the copies that the thread makes
  std::unique_ptr<std::byte[]> memory_;  // kept for the next state
  std::size_t memory_bytes_ = 0;
  std::exception_ptr not_copied_;  // the reason why the copies are not the state
  std::exception_ptr failure_;

  mutable Mutex mutex_;
  Condition changed_;
  Phase phase_ GUARDED_BY(mutex_) = Phase::idle;
  std::thread thread_;
};

}  // namespace lockstep
