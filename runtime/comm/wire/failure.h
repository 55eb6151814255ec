// The first cause of a group's failure: one for all ranks, since the store keeps the first that any of them puts there.
//
// Threads: any.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include "runtime/base/mutex.h"
#include "runtime/comm/wire/frame.h"
#include "runtime/comm/wire/patient_store.h"

namespace lockstep::wire {

enum class Cause : std::uint8_t { peer_lost = 1, timeout, mismatch };

class Failure {
 public:
  // A longer text is cut before anybody sees it: it has to fit into a frame, and all are to read the same.
  static constexpr std::size_t kMostText = kInlineBytes;

  // `on_cause` is called once, with no lock held, by the thread that brought the cause. `store` outlives this.
  Failure(PatientStore& store, std::function<void()> on_cause) : store_(store), on_cause_(std::move(on_cause)) {}

  // Fails the group with this cause, unless another rank was first: then with that one's. Returns when there is one.
  // Where the store gives no answer, this rank's own stands.
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
  // Once it has happened.
  Known known() const;
  // Throws it, once it has happened.
  [[noreturn]] void raise() const;

 private:
  Known first_in_store(const Known& own) const;
  // True if this call's cause is the one.
  bool settle(const Known& cause);

  PatientStore& store_;
  std::function<void()> on_cause_;
  std::atomic<bool> happened_{false};
  mutable Mutex mutex_;
  std::optional<Known> cause_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::wire
