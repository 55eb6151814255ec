// SPDX-License-Identifier: Apache-2.0
// The first cause of a group's failure: one for all ranks, since the job's membership passes on the first that any of
// them says in a scope of the group, and no other (membership/scopes.h).
//
// Threads: any.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>

#include "lockstep/job/cause.h"
#include "runtime/base/internal_api.h"
#include "runtime/base/mutex.h"
#include "runtime/membership/scopes.h"

namespace lockstep::comm {

class LOCKSTEP_INTERNAL_API Failure {
 public:
  // A longer text is cut before anybody sees it: an encoded cause has to fit into a wire's frame, and all are to
  // read the same.
  static constexpr std::size_t kMostBytes = 1024;
  // The time to wait for the first cause: longer than a store may be silent before its members give it up, after which
  // nobody waits. A store that only hangs for a moment is waited for, so that all ranks have one cause.
  static constexpr std::chrono::seconds kPatience{4};

  // The failure of a group as seen by the rank that the job counts as `rank`; `scope` is one of first words. `on_cause`
  // is called once, with no lock held, by the thread that brought the cause, which may be the member link's;
  // `on_throw`, if there is one, before each throw of it, by the thread that throws.
  Failure(membership::ScopeAddress scope, int rank, std::function<void()> on_cause,
          std::function<void(const Cause&)> on_throw)
      : rank_(rank), on_cause_(std::move(on_cause)), on_throw_(std::move(on_throw)), channel_(std::move(scope)) {}

  // From start() until stop() other ranks' causes fail the group too. Without it this rank decides alone.
  void start();
  void stop() { channel_.unsubscribe(); }

  // Fails the group with this cause, unless another rank was first: then with that rank's. Returns when the group has a
  // cause. If the store does not answer, the first cause that this rank has proposed stands. Not on the link's thread.
  void propose(const Cause& cause);
  // The same, but returns at once: the group has a cause soon.
  void propose_async(const Cause& cause);
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
  // Fails the group with what this rank has proposed, if it has no cause.
  void decide_alone();

  const int rank_;
  const std::function<void()> on_cause_;
  const std::function<void(const Cause&)> on_throw_;
  std::atomic<bool> happened_{false};
  mutable Mutex mutex_;
  Condition changed_;
  std::optional<Cause> proposed_ GUARDED_BY(mutex_);
  std::optional<Cause> cause_ GUARDED_BY(mutex_);
  membership::GroupChannel channel_;  // last: its words come until it ends
};

}  // namespace lockstep::comm
