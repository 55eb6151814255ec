// SPDX-License-Identifier: Apache-2.0
// One thread that copies a state's tensors behind the training, and then writes them.
//
// Threads: training's calls it. Failure: start() throws SystemError if no thread can be made; an exception of the
// writing is kept for the next wait() or take_failure().
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/snapshot/snapshots.h"
#include "runtime/base/mutex.h"
#include "runtime/checkpoint/snapshot/manifest.h"
#include "runtime/checkpoint/snapshot/series.h"

namespace lockstep {

// An item as it is when a step ends.
struct CapturedItem {
  checkpoint::ManifestItem item;
  std::vector<SnapshotTensor> tensors;
};

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
  // The failure of the last state, once: null if it was written.
  std::exception_ptr take_failure();

 private:
  enum class Phase { idle, copying, copied, writing };
  // The place of a tensor's copy.
  struct Copy {
    std::size_t item = 0;
    std::size_t tensor = 0;
    std::size_t offset = 0;
    std::uint64_t version = 0;
  };

  void run();
  void copy(const Copy& copy);
  void write_all();
  std::vector<checkpoint::ItemSource> make_sources();
  std::string changed_tensor() const;

  const Write write_;
  checkpoint::Manifest head_;
  std::vector<CapturedItem> items_;
  std::vector<Copy> copies_;
  std::vector<Copy> behind_;             // the copies that the thread makes
  std::unique_ptr<std::byte[]> memory_;  // kept for the next state
  std::size_t memory_bytes_ = 0;

  mutable Mutex mutex_;
  Condition changed_;
  Phase phase_ GUARDED_BY(mutex_) = Phase::idle;
  bool is_ended_ GUARDED_BY(mutex_) = false;
  std::exception_ptr not_copied_ GUARDED_BY(mutex_);
  std::exception_ptr failure_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace lockstep
