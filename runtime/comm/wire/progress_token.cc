// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/progress_token.h"

#include <algorithm>
#include <utility>

namespace lockstep::wire {
namespace {

thread_local ProgressToken::Caller* innermost = nullptr;

}  // namespace

// Relaxed order is enough: only mutex_ hands over the token, and the unlock of mutex_ publishes all writes of the
// holder. The atomics only advise the communication thread when to try the mutex. A stale value makes the thread try
// too early, which costs a caller a failed try_lock(), or lets the thread nap once more. No work is lost, because work
// is in the engine's queue, under the engine's own mutex, before the token is requested.
void ProgressToken::take() {
  if (!is_wanted() && mutex_.try_lock()) return;
  std::chrono::microseconds most = kShortNap;
  for (;;) {
    const std::uint64_t taken = taken_.load(std::memory_order_relaxed);
    const bool is_requested = nap(most);
    most = std::min(2 * most, kLongNap);
    const bool callers_follow = is_wanted() || (taken_.load(std::memory_order_relaxed) != taken &&
                                                !awaits_caller_.load(std::memory_order_relaxed));
    // A request ends the naps even while callers follow each other: the request announces work that no caller does.
    if (!is_requested && callers_follow) continue;
    if (mutex_.try_lock()) return;
  }
}

void ProgressToken::end() {
  // Set is_over_ before the unlock: otherwise the next caller with the mutex would drive an engine with a closed wire.
  is_over_ = true;
  mutex_.unlock();
}

bool ProgressToken::nap(std::chrono::microseconds most) {
  MutexLock lock(nap_mutex_);
  is_napping_.store(true, std::memory_order_relaxed);
  // is_requested_ stays set after the request, so a request between two naps ends the next nap at once.
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
  // A communication thread that does not nap has the token or sleeps on the wire, whose bell the engine rings next. If
  // is_napping_ is stale, the work waits for the end of the next nap.
  if (!is_napping_.load(std::memory_order_relaxed) || is_wanted()) return;
  if (Clock::now() - last_had_.load(std::memory_order_relaxed) > kGap) return request();
  awaits_caller_.store(true, std::memory_order_relaxed);
}

void ProgressToken::give_up_of_this_thread() {
  // A signal's handler may close the group on top of a caller's frame. The close joins the communication thread, which
  // needs the token to end, and the caller below can't return before the join. So the caller must lose the token here.
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
  // From here on this caller sees all queued work, so the queued work awaits no caller any more.
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
  // The request comes after the unlock. The thread that the request wakes tries the mutex once: if the mutex were still
  // locked, the thread would have used up the request and would nap again.
  innermost = outer_;
  give_up();
  token_.callers_.fetch_sub(1, std::memory_order_relaxed);
  if (leaves_work_) token_.request();
}

}  // namespace lockstep::wire
