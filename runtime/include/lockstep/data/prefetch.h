// SPDX-License-Identifier: Apache-2.0
// Work done ahead by threads and handed out in order.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/base/mutex.h"

namespace lockstep::data {

// Calls produce(0), produce(1), ... produce(count - 1) on `workers` threads, at most `window` results ahead of the
// consumer, and hands the results out in index order: what comes out does not depend on how many threads there are.
//
// Threads: next() and the destructor belong to one consumer; produce is called by several workers at once.
// Failure: next() rethrows what produce threw for that index; the indices after it can still be had. Timeout names the
//   index when a result does not come.
// End: the destructor stops the workers in the middle of an epoch too; it waits for the calls of produce that are under
//   way, because those can't be interrupted.
class LOCKSTEP_API OrderedPrefetch {
 public:
  using Item = std::shared_ptr<void>;
  using Produce = std::function<Item(std::int64_t index)>;

  // With 0 workers produce runs inside next().
  OrderedPrefetch(Produce produce, std::int64_t count, int workers, int window, std::chrono::nanoseconds timeout);
  ~OrderedPrefetch();
  OrderedPrefetch(const OrderedPrefetch&) = delete;
  OrderedPrefetch& operator=(const OrderedPrefetch&) = delete;

  // The next result in order; null after the last.
  Item next();
  // Index that next() will hand out.
  std::int64_t position() const;

 private:
  struct Slot {
    bool filled = false;
    Item item;
    std::exception_ptr error;
  };

  void work();
  // Wakes the workers and waits for their end.
  void stop();

  const Produce produce_;
  const std::int64_t count_;
  const std::chrono::nanoseconds timeout_;
  mutable Mutex mutex_;
  Condition result_came_;
  Condition room_came_;
  std::vector<Slot> slots_ GUARDED_BY(mutex_);   // index i lies in slot i % window
  std::int64_t claimed_ GUARDED_BY(mutex_) = 0;  // indices below are taken by a worker
  std::int64_t handed_ GUARDED_BY(mutex_) = 0;   // indices below were given to the consumer
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::data
