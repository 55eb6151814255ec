// SPDX-License-Identifier: Apache-2.0
// The group's store, for the end of the group: the store may hang together with the rank that hosts it, and callers
// wait for it only for a moment.
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
  // The time to wait for an answer: longer than a store may be silent before the job's membership gives it up, after
  // which a request fails at once. A store that only hangs for a moment is waited for, so that all ranks have one
  // cause.
  static constexpr std::chrono::seconds kPatience{4};

  explicit TimeBoundedStore(std::shared_ptr<store::Store> store) : store_(std::move(store)) {}

  // Returns the answer of `question`; nullopt if the question throws an Error, if the store was released, or if there
  // is no answer after kPatience: then the question is left behind, and no other is asked before it has its answer.
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
