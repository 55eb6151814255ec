// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/data_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/mutex.h"
#include "runtime/base/quiet_thread.h"

namespace lockstep::data {

namespace {

// A worker that next() has waited for in vain has this long to end all the same.
constexpr std::chrono::seconds kLastChance{1};

}  // namespace

// A worker may outlive the prefetch, so it touches nothing else.
struct OrderedPrefetch::Shared {
  struct Slot {
    bool filled = false;
    Item item;
    std::exception_ptr error;
  };

  Shared(Produce how, std::int64_t many, int window)
      : produce(std::move(how)), count(many), slots(static_cast<std::size_t>(std::max(window, 1))) {}

  void work() EXCLUDES(mutex);

  const Produce produce;
  const std::int64_t count;
  Mutex mutex;
  Condition result_came;
  Condition room_came;
  Condition worker_ended;
  std::vector<Slot> slots GUARDED_BY(mutex);   // index i lies in slot i % window
  std::int64_t claimed GUARDED_BY(mutex) = 0;  // indices below are taken by a worker
  std::int64_t handed GUARDED_BY(mutex) = 0;   // indices below were given to the consumer
  int working GUARDED_BY(mutex) = 0;           // workers that have not ended
  bool stopping GUARDED_BY(mutex) = false;
};

OrderedPrefetch::OrderedPrefetch(Produce produce, std::int64_t count, int workers, int window,
                                 std::chrono::nanoseconds timeout)
    : state_(std::make_shared<Shared>(std::move(produce), count, window)), timeout_(timeout) {
  const auto useful = std::min<std::int64_t>(workers, count);
  try {
    for (std::int64_t i = 0; i < useful; ++i) {
      threads_.push_back(start_quiet_thread([state = state_] { state->work(); }, "lockstep-data"));
      MutexLock lock(state_->mutex);
      ++state_->working;
    }
  } catch (...) {
    stop();
    throw;
  }
}

OrderedPrefetch::~OrderedPrefetch() { stop(); }

// A reader that hangs must not keep the consumer here: most often it is on its way out with the error that says so.
void OrderedPrefetch::stop() {
  const Deadline deadline =
      Deadline::after(is_overdue_ ? kLastChance : std::max<std::chrono::nanoseconds>(timeout_, kLastChance));
  int left_behind = 0;
  {
    MutexLock lock(state_->mutex);
    state_->stopping = true;
    state_->room_came.notify_all();
    while (state_->working > 0 && !deadline.expired()) state_->worker_ended.wait_until(state_->mutex, deadline);
    left_behind = state_->working;
  }
  if (left_behind > 0) {
    log_warn(
        "DataLoader: {} of {} workers have not returned from the dataset's read ({}), and their threads keep running; "
        "look at what the dataset waits for",
        left_behind, threads_.size(), deadline.progress());
  }
  // Nothing says which thread is the one that hangs, so none is joined then.
  for (std::thread& thread : threads_) left_behind > 0 ? thread.detach() : thread.join();
  threads_.clear();
}

void OrderedPrefetch::Shared::work() {
  for (;;) {
    std::int64_t index = 0;
    {
      MutexLock lock(mutex);
      const auto window = static_cast<std::int64_t>(slots.size());
      while (!stopping && claimed < count && claimed >= handed + window) room_came.wait(mutex);
      if (stopping || claimed >= count) {
        --working;
        worker_ended.notify_all();
        return;
      }
      index = claimed++;
    }
    Slot made{.filled = true, .item = nullptr, .error = nullptr};
    try {
      made.item = produce(index);
    } catch (...) {
      made.error = std::current_exception();
    }
    {
      MutexLock lock(mutex);
      slots[static_cast<std::size_t>(index) % slots.size()] = std::move(made);
    }
    result_came.notify_one();
  }
}

std::int64_t OrderedPrefetch::position() const {
  MutexLock lock(state_->mutex);
  return state_->handed;
}

OrderedPrefetch::Item OrderedPrefetch::next() {
  Shared& state = *state_;
  Shared::Slot taken;
  std::int64_t index = 0;
  {
    MutexLock lock(state.mutex);
    if (state.handed >= state.count) return nullptr;
    index = state.handed;
    if (!threads_.empty()) {
      Shared::Slot& slot = state.slots[static_cast<std::size_t>(index) % state.slots.size()];
      const Deadline deadline = Deadline::after(timeout_);
      while (!slot.filled) {
        if (!state.result_came.wait_until(state.mutex, deadline) && !slot.filled && deadline.expired()) {
          is_overdue_ = true;
          throw Timeout(
              fmt::format("DataLoader: batch {} of {} was not read in time ({}); look at what the dataset waits for, "
                          "or raise the loader's timeout",
                          index, state.count, deadline.progress()));
        }
      }
      is_overdue_ = false;
      // Emptied under the lock that counts it as handed: from then on a worker may fill this slot with a later index.
      taken = std::exchange(slot, Shared::Slot{});
    }
    ++state.handed;
  }
  if (threads_.empty()) return state.produce(index);
  state.room_came.notify_one();
  if (taken.error) std::rethrow_exception(taken.error);
  return std::move(taken.item);
}

}  // namespace lockstep::data
