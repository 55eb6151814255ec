// The first cause of a group's failure: one for all ranks, since the store keeps the first that any of them puts there.
//
// Threads: any.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/mutex.h"
#include "runtime/store/store.h"

namespace lockstep::wire {

enum class Cause : std::uint8_t { peer_lost = 1, timeout, mismatch };

class Failure {
 public:
  // The store may stand still together with the rank whose failure is proposed.
  static constexpr std::chrono::seconds kStorePatience{1};

  // `on_cause` is called once, with no lock held, by the thread that brought the cause.
  Failure(std::shared_ptr<store::Store> store, std::function<void()> on_cause)
      : on_cause_(std::move(on_cause)), store_(std::move(store)) {}

  // Fails the group with this cause, unless another rank was first: then with that one's. Returns when there is one.
  // Where the store can't be reached, or has not answered after kStorePatience, this rank's own stands.
  void propose(Cause cause, const std::string& text);
  // Fails it with a cause that another rank has told.
  void adopt(Cause cause, const std::string& text);
  // Proposes, then throws the first cause.
  [[noreturn]] void fail(Cause cause, const std::string& text);

  bool happened() const { return happened_.load(std::memory_order_acquire); }
  // Throws the cause, if there is one.
  void check() const {
    if (happened()) raise();
  }
  struct Known {
    Cause cause;
    std::string text;
  };
  // Of a group that never came to be: fails it with `text`, for whoever still works for it, and lets the store go.
  void abandon(const std::string& text);
  // Once it has happened.
  Known known() const;
  // Throws it, once it has happened.
  [[noreturn]] void raise() const;

 private:
  Known first_in_store(const Known& own) const;
  // True if this call's cause is the one.
  bool settle(const Known& cause);

  std::function<void()> on_cause_;
  std::atomic<bool> happened_{false};
  mutable Mutex mutex_;
  std::shared_ptr<store::Store> store_ GUARDED_BY(mutex_);  // null once abandoned
  std::optional<Known> cause_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::wire
