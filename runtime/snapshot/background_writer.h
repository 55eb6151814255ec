// SPDX-License-Identifier: Apache-2.0
// One thread that copies a state's tensors while the training continues, and then writes them.
//
// idle -> start() -> copying -> copied -> wait_copied() -> writing -> idle: the training's thread makes the first and
// the third step, this one the others. In each phase the rest of the fields belongs to one of the two, so that the lock
// guards the phase alone: the training's in idle and copied, this one's in copying and writing.
//
// Threads: the training's calls it. Failure: start() throws SystemError if no thread can be made; an exception of the
// writing is kept for take_failure().
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
  // Called on the thread, when all is copied; the sources' bytes are the copies'. `why_not`: null, or why there are
  // none.
  using Write = std::function<void(checkpoint::Manifest head, std::span<const checkpoint::ItemSource> items,
                                   const std::exception_ptr& why_not)>;

  explicit BackgroundWriter(Write write) : write_(std::move(write)) {}
  // Waits until the started state is written.
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  // Whether a state is being copied or written.
  bool is_busy() const;
  // Starts to write a state; not while busy. Copies the tensors that can't wait, and leaves the rest to the thread.
  void start(checkpoint::Manifest head, std::vector<CapturedItem> items);
  // Blocks until the training may write the tensors again. If one was written meanwhile, the state that was started is
  // not saved.
  void wait_copied() noexcept;
  void wait();
  // While not busy: the failure of the last state, once; null if it was written.
  std::exception_ptr take_failure() { return std::exchange(failure_, nullptr); }

 private:
  enum class Phase { idle, copying, copied, writing, ended };
  // A copy for a tensor of `items_`, which has its bytes from start() on.
  struct Copy {
    std::string_view item;
    SnapshotTensor* tensor = nullptr;
    std::span<const std::byte> from;
    std::size_t offset = 0;  // in memory_
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
  std::vector<Copy> later_;              // of these, those that the thread makes
  std::unique_ptr<std::byte[]> memory_;  // kept for the next state
  std::size_t memory_bytes_ = 0;
  std::exception_ptr not_copied_;  // why the copies are not the state
  std::exception_ptr failure_;

  mutable Mutex mutex_;
  Condition changed_;
  Phase phase_ GUARDED_BY(mutex_) = Phase::idle;
  std::thread thread_;
};

}  // namespace lockstep
