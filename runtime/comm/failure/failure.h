// SPDX-License-Identifier: Apache-2.0
// The first cause of a group's failure: one for all ranks, since the store keeps the first that any of them puts there.
//
// Threads: any.
#pragma once

#include <atomic>
#include <functional>
#include <optional>

#include "lockstep/job/cause.h"
#include "runtime/base/internal_api.h"
#include "runtime/base/mutex.h"
#include "runtime/comm/failure/time_bounded_store.h"

namespace lockstep::comm {

class LOCKSTEP_INTERNAL_API Failure {
 public:
  // A longer text is cut before anybody sees it: an encoded cause has to fit into a wire's frame, and all are to
  // read the same.
  static constexpr std::size_t kMostBytes = 1024;

  // The failure of a group as seen by the rank that the job counts as `rank`. `on_cause` is called once, with no lock
  // held, by the thread that brought the cause; `on_throw`, if there is one, before each throw of it, by the thread
  // that throws. `store` outlives this.
  Failure(TimeBoundedStore& store, int rank, std::function<void()> on_cause, std::function<void(const Cause&)> on_throw)
      : store_(store), rank_(rank), on_cause_(std::move(on_cause)), on_throw_(std::move(on_throw)) {}

  // Fails the group with this cause, unless another rank was first: then with that rank's. Returns when the group has a
  // cause. If the store gives no answer, this rank's cause stands.
  void propose(const Cause& cause);
  // Fails the group with a cause that another rank has told.
  void adopt(const Cause& cause);
  // Proposes, then throws the first cause.
  [[noreturn]] void fail(const Cause& cause);

  bool happened() const { return happened_.load(std::memory_order_acquire); }
  // Throws the cause, if there is one.
  void check() const {
    if (happened()) raise();
  }
  // Once it has happened.
  Cause known() const;
  // Throws it, once it has happened.
  [[noreturn]] void raise() const;

 private:
  Cause first_in_store(const Cause& own) const;
  // True if this call's cause is the one.
  bool set_cause(const Cause& cause);

  TimeBoundedStore& store_;
  const int rank_;
  const std::function<void()> on_cause_;
  const std::function<void(const Cause&)> on_throw_;
  std::atomic<bool> happened_{false};
  mutable Mutex mutex_;
  std::optional<Cause> cause_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::comm
