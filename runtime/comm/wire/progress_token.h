// SPDX-License-Identifier: Apache-2.0
// The token to run an engine. The communication thread has it, or a thread of the program that waits for a collective
// anyway.
//
// Handing work to another thread and its result back takes longer than a small collective. So a caller that waits takes
// the token, if it is free, and does the communication thread's work. That thread naps meanwhile, and while callers
// follow each other quickly.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "runtime/base/mutex.h"

namespace lockstep::wire {

class ProgressToken {
 public:
  // Takes the token; only the communication thread calls it. Waits while a caller has the token or is about to take it
  // again.
  void take() EXCLUDES(nap_mutex_);
  void release() { mutex_.unlock(); }
  // Ends the token, in place of release(): no thread gets it any more.
  void end();
  // True if a caller wants the token.
  bool is_wanted() const { return callers_.load(std::memory_order_relaxed) > 0; }
  // Gives the token to a waiting caller, and takes it again.
  void yield_to_caller() {
    release();
    take();
  }

  // Announces work that no caller does: the communication thread takes the token as soon as it is free. Any thread.
  void request() EXCLUDES(nap_mutex_);
  // Announces work that a caller will do if it comes at once, as a caller does that has just had the token. If none
  // does, the communication thread takes the token after its nap. Any thread.
  void request_unless_callers_follow() EXCLUDES(nap_mutex_);
  // Takes the token from a caller further down this thread's stack: this thread then runs a signal's handler.
  void give_up_of_this_thread();

  // A thread of the program that wants the token during the object's lifetime.
  class Caller {
   public:
    explicit Caller(ProgressToken& token);
    ~Caller();
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;

    // True if it has the token, since now or from before.
    bool take();
    // Notes that work is left which this caller does not wait for.
    void leave_work() { leaves_work_ = true; }

   private:
    friend class ProgressToken;

    void give_up();

    ProgressToken& token_;
    Caller* const outer_;  // an outer caller of this thread, in another group
    bool has_it_ = false;
    bool leaves_work_ = false;
  };

 private:
  // Naps grow from kShortNap to kLongNap while callers follow each other: a wake-up takes their core if there are few.
  // The longest bounds the wait of a collective that is started right after another, and that nobody waits for.
  static constexpr std::chrono::microseconds kShortNap{200};
  static constexpr std::chrono::microseconds kLongNap{2000};
  // The gap after which a caller does not count as following.
  static constexpr std::chrono::microseconds kGap{100};

  using Clock = std::chrono::steady_clock;

  // Naps; true if the token was requested.
  bool nap(std::chrono::microseconds most) EXCLUDES(nap_mutex_);

  std::mutex mutex_;
  bool is_over_ = false;  // guarded by the token
  std::atomic<int> callers_{0};
  std::atomic<std::uint64_t> taken_{0};  // how often callers took it
  // The time until which a caller last had it.
  std::atomic<Clock::time_point> last_had_{};
  std::atomic<bool> is_napping_{false};
  std::atomic<bool> awaits_caller_{false};  // whether work waits for a caller

  Mutex nap_mutex_;
  Condition woken_;
  bool is_requested_ GUARDED_BY(nap_mutex_) = false;
};

}  // namespace lockstep::wire
