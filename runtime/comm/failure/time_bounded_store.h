// SPDX-License-Identifier: Apache-2.0
// The group's store, as its end needs it: it may stand still together with the rank that hosts it, and nobody waits for
// it for longer than a moment.
//
// Threads: any.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/store/store.h"
#include "runtime/base/mutex.h"

namespace lockstep::comm {

class TimeBoundedStore {
 public:
  // Longer than a store may be silent that the job's membership has not given up: who asks it then gets no answer at
  // once. A store that only stands still for a moment is waited for, so that all ranks have one cause.
  static constexpr std::chrono::seconds kPatience{4};

  explicit TimeBoundedStore(std::shared_ptr<store::Store> store) : store_(std::move(store)) {}

  // Returns the answer of `question`. Nothing if it throws an Error, if the store was let go, or if there is no answer
  // after kPatience: then the question is left behind, and no other is asked before it has its answer.
  std::optional<std::string> ask(std::function<std::string(store::Store&)> question);
  // Lets the store go, for a group that never came to be: rank 0's store ends with its owner.
  void release();

 private:
  using Answer = std::optional<std::string>;

  Mutex mutex_;
  std::shared_ptr<store::Store> store_ GUARDED_BY(mutex_);
  std::shared_future<Answer> left_behind_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::comm
