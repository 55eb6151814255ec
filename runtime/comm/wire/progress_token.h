// SPDX-License-Identifier: Apache-2.0
// The token to run an engine: its communication thread has it, or a thread of the program's that waits for a collective
// anyway.
//
// To hand work to another thread and the result back takes longer than a small collective. So a caller that waits takes
// the token, if it is free, and does what the communication thread would do. That thread naps meanwhile, and while
// callers come and go in quick succession.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "runtime/base/mutex.h"

namespace lockstep::wire {

class ProgressToken {
 public:
  // Called by the communication thread. Waits while a caller has the token or is about to take it again.
  void take() EXCLUDES(nap_mutex_);
  void release() { mutex_.unlock(); }
  // Instead of release(): nobody gets the token any more.
  void end();
  // True if a caller wants the token.
  bool is_wanted() const { return callers_.load(std::memory_order_relaxed) > 0; }
  // Gives the token to such a caller, and takes it again.
  void yield_to_caller() {
    release();
    take();
  }

  // Announces work that no caller does: the communication thread takes the token as soon as it is free. Any thread.
  void request() EXCLUDES(nap_mutex_);
  // Announces work that a caller will do if it comes at once, as one does that has just had the token. If none does,
  // the communication thread takes the token after its nap. Any thread.
  void request_unless_callers_follow() EXCLUDES(nap_mutex_);
  // Takes the token from a caller further down this thread's stack: this thread then runs a signal's handler.
  void give_up_of_this_thread();

  // A thread of the program's that wants the token while this lives.
  class Caller {
   public:
    explicit Caller(ProgressToken& token);
    ~Caller();
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;

    // True if it has the token, since now or from before.
    bool take();
    // Work is left that this caller does not wait for.
    void leave_work() { leaves_work_ = true; }

   private:
    friend class ProgressToken;

    void give_up();

    ProgressToken& token_;
    Caller* const outer_;  // of this thread, in another group
    bool has_it_ = false;
    bool leaves_work_ = false;
  };

 private:
  // Naps grow from the one to the other while callers come and go: a wake takes their core where there are few. The
  // longest bounds the wait of a collective that is started right behind another, and that nobody waits for.
  static constexpr std::chrono::microseconds kShortNap{200};
  static constexpr std::chrono::microseconds kLongNap{2000};
  // A caller that comes after a longer gap does not follow at once.
  static constexpr std::chrono::microseconds kGap{100};

  using Clock = std::chrono::steady_clock;

  // True if it was requested.
  bool nap(std::chrono::microseconds most) EXCLUDES(nap_mutex_);

  std::mutex mutex_;
  bool is_over_ = false;  // whoever has the token
  std::atomic<int> callers_{0};
  std::atomic<std::uint64_t> taken_{0};        // by callers, how often
  std::atomic<Clock::time_point> last_had_{};  // by a caller, until then
  std::atomic<bool> is_napping_{false};
  std::atomic<bool> awaits_caller_{false};  // work does

  Mutex nap_mutex_;
  Condition woken_;
  bool is_requested_ GUARDED_BY(nap_mutex_) = false;
};

}  // namespace lockstep::wire
