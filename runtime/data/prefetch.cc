// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/prefetch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/quiet_thread.h"

namespace lockstep::data {

OrderedPrefetch::OrderedPrefetch(Produce produce, std::int64_t count, int workers, int window,
                                 std::chrono::nanoseconds timeout)
    : produce_(std::move(produce)), count_(count), timeout_(timeout) {
  {
    MutexLock lock(mutex_);
    slots_.resize(static_cast<std::size_t>(std::max(window, 1)));
  }
  const auto useful = std::min<std::int64_t>(workers, count);
  try {
    for (std::int64_t i = 0; i < useful; ++i) threads_.push_back(start_quiet_thread([this] { work(); }));
  } catch (...) {
    stop();
    throw;
  }
}

OrderedPrefetch::~OrderedPrefetch() { stop(); }

void OrderedPrefetch::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  room_came_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void OrderedPrefetch::work() {
  for (;;) {
    std::int64_t index = 0;
    {
      MutexLock lock(mutex_);
      const auto window = static_cast<std::int64_t>(slots_.size());
      while (!stopping_ && claimed_ < count_ && claimed_ >= handed_ + window) room_came_.wait(mutex_);
      if (stopping_ || claimed_ >= count_) return;
      index = claimed_++;
    }
    Slot made{.filled = true, .item = nullptr, .error = nullptr};
    try {
      made.item = produce_(index);
    } catch (...) {
      made.error = std::current_exception();
    }
    {
      MutexLock lock(mutex_);
      slots_[static_cast<std::size_t>(index) % slots_.size()] = std::move(made);
    }
    result_came_.notify_one();
  }
}

std::int64_t OrderedPrefetch::position() const {
  MutexLock lock(mutex_);
  return handed_;
}

OrderedPrefetch::Item OrderedPrefetch::next() {
  Slot taken;
  std::int64_t index = 0;
  {
    MutexLock lock(mutex_);
    if (handed_ >= count_) return nullptr;
    index = handed_;
    if (!threads_.empty()) {
      Slot& slot = slots_[static_cast<std::size_t>(index) % slots_.size()];
      const Deadline deadline = Deadline::after(timeout_);
      while (!slot.filled) {
        if (!result_came_.wait_until(mutex_, deadline) && !slot.filled && deadline.expired()) {
          throw Timeout(
              fmt::format("data: batch {} of {} was not read in time ({}); its reader hangs, or the loader's "
                          "timeout is too short",
                          index, count_, deadline.progress()));
        }
      }
      taken = std::exchange(slot, Slot{});
    }
    ++handed_;
  }
  if (threads_.empty()) return produce_(index);
  room_came_.notify_one();
  if (taken.error) std::rethrow_exception(taken.error);
  return std::move(taken.item);
}

}  // namespace lockstep::data
