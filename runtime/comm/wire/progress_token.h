// SPDX-License-Identifier: Apache-2.0
// A thread needs the ProgressToken to run an engine. The communication thread has the token, or a thread of the program
// that waits for a collective anyway.
//
// Handing work to another thread and its result back takes longer than a small collective. So a caller that waits takes
// the token, if the token is free, and does the communication thread's work. The communication thread naps meanwhile,
// and while callers follow each other quickly.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "runtime/base/mutex.h"

namespace lockstep::wire {

class ProgressToken {
 public:
  // Takes the token for the communication thread. Waits while a caller has the token or will soon take the token again.
  void take() EXCLUDES(nap_mutex_);
  void release() { mutex_.unlock(); }
  // Releases the token for good: no thread gets the token any more.
  void end();
  // Returns true if a caller wants the token.
  bool is_wanted() const { return callers_.load(std::memory_order_relaxed) > 0; }
  // Gives the token to a waiting caller, and takes the token again.
  void yield_to_caller() {
    release();
    take();
  }

  // Announces work that no caller does: the communication thread takes the token as soon as the token is free. Any
  // thread may call request().
  void request() EXCLUDES(nap_mutex_);
  // Announces work that the next caller will do if that caller comes at once after the last caller. If no caller comes,
  // the communication thread takes the token after its nap. Any thread may call this function.
  void request_unless_callers_follow() EXCLUDES(nap_mutex_);
  // Takes the token from a caller further down this thread's stack, because this thread runs a signal's handler.
  void give_up_of_this_thread();

  // A Caller shows that a thread of the program wants the token, for the lifetime of the Caller.
  class Caller {
   public:
    explicit Caller(ProgressToken& token);
    ~Caller();
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;

    // Returns true if this caller has the token, from this call or an earlier call.
    bool take();
    // Notes that the queue has work for which this caller does not wait.
    void leave_work() { leaves_work_ = true; }

   private:
    friend class ProgressToken;

    void give_up();

    ProgressToken& token_;
    Caller* const outer_;  // the next outer caller of this thread, in another group
    bool has_it_ = false;
    bool leaves_work_ = false;
  };

 private:
  // Naps grow from kShortNap to kLongNap while callers follow each other, because on few cores a wake-up takes a
  // caller's core. kLongNap bounds the wait of a collective that is started right after another collective, and that
  // nobody waits for.
  static constexpr std::chrono::microseconds kShortNap{200};
  static constexpr std::chrono::microseconds kLongNap{2000};
  // The gap after which a caller does not count as following the last caller.
  static constexpr std::chrono::microseconds kGap{100};

  using Clock = std::chrono::steady_clock;

  // Naps for at most `most`. Returns true if the token was requested.
  bool nap(std::chrono::microseconds most) EXCLUDES(nap_mutex_);

  std::mutex mutex_;
  bool is_over_ = false;  // true after end(); guarded by the token
  std::atomic<int> callers_{0};
  std::atomic<std::uint64_t> taken_{0};  // the number of times that callers took the token
  // The time until which a caller last had the token.
  std::atomic<Clock::time_point> last_had_{};
  std::atomic<bool> is_napping_{false};
  std::atomic<bool> awaits_caller_{false};  // true while work waits for a caller

  Mutex nap_mutex_;
  Condition woken_;
  bool is_requested_ GUARDED_BY(nap_mutex_) = false;
};

}  // namespace lockstep::wire
