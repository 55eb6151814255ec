// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/progress_token.h"

#include <algorithm>
#include <utility>

namespace lockstep::wire {
namespace {

thread_local ProgressToken::Caller* innermost = nullptr;

}  // namespace

// Relaxed order is enough for the token's atomics: only mutex_ hands over the token, and the unlock of mutex_ publishes
// all writes of the holder. The token's atomics only tell the communication thread when to try to lock mutex_. A stale
// value of an atomic may make the communication thread lock mutex_ too early, so that a try_lock() of a caller fails. A
// stale value of an atomic may also let the communication thread nap once more. A stale value of an atomic loses no
// work, because the engine queues work under its own mutex before it requests the token.
void ProgressToken::take() {
  if (!is_wanted() && mutex_.try_lock()) return;
  std::chrono::microseconds most = kShortNap;
  for (;;) {
    const std::uint64_t taken = taken_.load(std::memory_order_relaxed);
    const bool is_requested = nap(most);
    most = std::min(2 * most, kLongNap);
    const bool callers_follow = is_wanted() || (taken_.load(std::memory_order_relaxed) != taken &&
                                                !awaits_caller_.load(std::memory_order_relaxed));
    // A request ends the naps even while new callers keep taking the token, because the request announces work that no
    // caller does.
    if (!is_requested && callers_follow) continue;
    if (mutex_.try_lock()) return;
  }
}

void ProgressToken::end() {
  // Set is_over_ before the unlock; otherwise the next caller that locks mutex_ would drive an engine whose wire
  // is closed.
  is_over_ = true;
  mutex_.unlock();
}

bool ProgressToken::nap(std::chrono::microseconds most) {
  MutexLock lock(nap_mutex_);
  is_napping_.store(true, std::memory_order_relaxed);
  // A request leaves is_requested_ set until a nap ends, so a request between two naps ends the next nap at once.
  if (!is_requested_) woken_.wait_until(nap_mutex_, Deadline::after(most));
  is_napping_.store(false, std::memory_order_relaxed);
  return std::exchange(is_requested_, false);
}

void ProgressToken::request() {
  MutexLock lock(nap_mutex_);
  is_requested_ = true;
  woken_.notify_one();
}

void ProgressToken::request_unless_callers_follow() {
  // If the communication thread does not nap, the thread has the token or sleeps on the wire, and the engine rings the
  // wire's doorbell next. If the loaded value of is_napping_ is stale, the new work waits for the end of the next nap.
  if (!is_napping_.load(std::memory_order_relaxed) || is_wanted()) return;
  if (Clock::now() - last_had_.load(std::memory_order_relaxed) > kGap) return request();
  awaits_caller_.store(true, std::memory_order_relaxed);
}

void ProgressToken::give_up_of_this_thread() {
  // A signal handler may close the group while the function that the signal interrupted has a Caller on this thread's
  // stack. Closing the group joins the communication thread, which needs the token to end, and the interrupted Caller
  // can't return before the join. The interrupted Caller must give up the token here, so that the communication thread
  // can end.
  for (Caller* caller = innermost; caller != nullptr; caller = caller->outer_) {
    if (&caller->token_ == this) caller->give_up();
  }
}

ProgressToken::Caller::Caller(ProgressToken& token) : token_(token), outer_(std::exchange(innermost, this)) {
  token_.callers_.fetch_add(1, std::memory_order_relaxed);
}

bool ProgressToken::Caller::take() {
  if (has_it_) return true;
  if (!token_.mutex_.try_lock()) return false;
  if (token_.is_over_) {
    token_.mutex_.unlock();
    return false;
  }
  // A caller that has the token sees all queued work, so awaits_caller_ is reset: the queued work needs no
  // further caller.
  token_.taken_.fetch_add(1, std::memory_order_relaxed);
  token_.awaits_caller_.store(false, std::memory_order_relaxed);
  return has_it_ = true;
}

void ProgressToken::Caller::give_up() {
  if (std::exchange(has_it_, false)) {
    token_.last_had_.store(Clock::now(), std::memory_order_relaxed);
    token_.mutex_.unlock();
  }
}

ProgressToken::Caller::~Caller() {
  // Call request() after give_up(), because for each request the communication thread tries to lock mutex_ only once,
  // and naps again if mutex_ is still locked.
  innermost = outer_;
  give_up();
  token_.callers_.fetch_sub(1, std::memory_order_relaxed);
  if (leaves_work_) token_.request();
}

}  // namespace lockstep::wire
