// SPDX-License-Identifier: Apache-2.0
// Work done ahead by threads and handed out in order.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep::data {

// Calls produce(0), produce(1), ... produce(count - 1) on `workers` threads, at most `window` results ahead of the
// consumer, and hands the results out in index order: what comes out does not depend on how many threads there are.
//
// Threads: next() and the destructor belong to one consumer; produce is called by several workers at once.
// Failure: next() rethrows what produce threw for that index; the indices after it can still be had. Timeout names the
//   index when a result does not come.
// End: the destructor stops the workers in the middle of an epoch too. It waits for the calls of produce that are under
//   way, because those can't be interrupted: up to `timeout` and at least a second, or that second alone where next()
//   has just waited for `timeout` in vain. A call that still runs then is left behind, with a line in the log: its
//   thread ends when the call returns, and keeps `produce` and all that it holds alive until then. What produce only
//   refers to must live as long.
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
  struct LOCKSTEP_LOCAL Shared;

  // Wakes the workers and waits for their end.
  void stop();

  const std::shared_ptr<Shared> state_;  // the workers' too
  const std::chrono::nanoseconds timeout_;
  bool is_overdue_ = false;  // the last next() ended by Timeout
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::data
