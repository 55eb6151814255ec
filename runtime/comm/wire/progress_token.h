// SPDX-License-Identifier: Apache-2.0
// A thread must hold the ProgressToken to run a WireEngine. The token is held by the communication thread, or by a
// caller: a thread of the program that waits for a collective.
//
// Handing work to another thread, and handing the result back, takes longer than a small collective. A caller that
// waits therefore takes the token, if the token is free, and does the communication thread's work. The communication
// thread naps while a caller has the token, and as long as new callers take the token in quick succession.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "runtime/base/mutex.h"

namespace lockstep::wire {

class ProgressToken {
 public:
  // Takes the token for the communication thread. Waits while a caller has the token, and while another caller is
  // likely to take the token soon.
  void take() EXCLUDES(nap_mutex_);
  void release() { mutex_.unlock(); }
  // Releases the token for good: after end(), no thread gets the token any more.
  void end();
  // Returns true if a caller wants the token.
  bool is_wanted() const { return callers_.load(std::memory_order_relaxed) > 0; }
  // Gives the token to a waiting caller, and then takes the token again for the communication thread.
  void yield_to_caller() {
    release();
    take();
  }

  // Announces work that no caller does. After request(), the communication thread takes the token as soon as the token
  // is free. Any thread may call request().
  void request() EXCLUDES(nap_mutex_);
  // Announces work that the next caller does if the last caller gave up the token less than kGap ago. If no next caller
  // comes, the communication thread takes the token after its nap, and does the announced work. Any thread may call
  // request_unless_callers_follow() at any time.
  void request_unless_callers_follow() EXCLUDES(nap_mutex_);
  // Takes this token away from every Caller object on this thread's stack that has the token. A signal handler that
  // closes the group must call give_up_of_this_thread().
  void give_up_of_this_thread();

  // As long as a Caller object exists, a thread of the program wants the token.
  class Caller {
   public:
    explicit Caller(ProgressToken& token);
    ~Caller();
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;

    // Takes the token if the token is free. Returns true if this caller now has the token, from this call or an
    // earlier call.
    bool take();
    // Records that the engine's queue has work for which this caller does not wait.
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
  // Naps grow from kShortNap to kLongNap while new callers keep taking the token, because a wake-up takes a core from a
  // caller on a machine with few cores. If a collective is started right after another collective and nobody waits for
  // the new collective, a nap delays the new collective by at most kLongNap.
  static constexpr std::chrono::microseconds kShortNap{200};
  static constexpr std::chrono::microseconds kLongNap{2000};
  // The longest time after a caller gave up the token for which request_unless_callers_follow() expects another caller.
  static constexpr std::chrono::microseconds kGap{100};

  using Clock = std::chrono::steady_clock;

  // Naps for at most `most`. Returns true if the token was requested.
  bool nap(std::chrono::microseconds most) EXCLUDES(nap_mutex_);

  std::mutex mutex_;
  bool is_over_ = false;  // true after end(); guarded by the token
  std::atomic<int> callers_{0};
  std::atomic<std::uint64_t> taken_{0};  // the number of times that callers took the token
  // The time at which a caller last gave up the token.
  std::atomic<Clock::time_point> last_had_{};
  std::atomic<bool> is_napping_{false};
  std::atomic<bool> awaits_caller_{false};  // true while work waits for a caller

  Mutex nap_mutex_;
  Condition woken_;
  bool is_requested_ GUARDED_BY(nap_mutex_) = false;
};

}  // namespace lockstep::wire
