// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/turn.h"

#include <algorithm>
#include <utility>

namespace lockstep::wire {
namespace {

thread_local Turn::Caller* innermost = nullptr;

}  // namespace

// Why relaxed is enough: mutex_ alone hands the turn on, and its unlock publishes whatever the holder wrote. The
// atomics only advise the communication thread when to try the mutex. A stale value makes it try too early, which costs
// a caller a failed try_lock(), or lets it nap once more; no work is lost, since work stands in the engine's queue,
// under the engine's own mutex, before anybody is called.
void Turn::take() {
  if (!is_wanted() && mutex_.try_lock()) return;
  std::chrono::microseconds most = kShortNap;
  for (;;) {
    const std::uint64_t taken = taken_.load(std::memory_order_relaxed);
    const bool is_called = nap(most);
    most = std::min(2 * most, kLongNap);
    const bool callers_follow = is_wanted() || (taken_.load(std::memory_order_relaxed) != taken &&
                                                !awaits_caller_.load(std::memory_order_relaxed));
    // A call ends the naps even while callers come and go: it announces work that none of them does.
    if (!is_called && callers_follow) continue;
    if (mutex_.try_lock()) return;
  }
}

void Turn::end() {
  // Set before the unlock: a caller that gets the mutex next would otherwise drive an engine whose wire is closed.
  is_over_ = true;
  mutex_.unlock();
}

bool Turn::nap(std::chrono::microseconds most) {
  MutexLock lock(nap_mutex_);
  is_napping_.store(true, std::memory_order_relaxed);
  // is_called_ outlives the moment of the call, so a call between two naps ends the next one at once.
  if (!is_called_) woken_.wait_until(nap_mutex_, Deadline::after(most));
  is_napping_.store(false, std::memory_order_relaxed);
  return std::exchange(is_called_, false);
}

void Turn::call() {
  MutexLock lock(nap_mutex_);
  is_called_ = true;
  woken_.notify_one();
}

void Turn::call_unless_callers_follow() {
  // A thread that does not nap has the turn or sleeps on the wire, whose bell the engine rings next. A stale flag
  // leaves the work to the next nap's end.
  if (!is_napping_.load(std::memory_order_relaxed) || is_wanted()) return;
  if (Clock::now() - last_had_.load(std::memory_order_relaxed) > kGap) return call();
  awaits_caller_.store(true, std::memory_order_relaxed);
}

void Turn::give_up_of_this_thread() {
  // A signal's handler may close the group on top of a caller's frame. The close joins the communication thread, which
  // needs the turn to end, and the caller below can't return before the join does: it must lose the turn here.
  for (Caller* caller = innermost; caller != nullptr; caller = caller->outer_) {
    if (&caller->turn_ == this) caller->give_up();
  }
}

Turn::Caller::Caller(Turn& turn) : turn_(turn), outer_(std::exchange(innermost, this)) {
  turn_.callers_.fetch_add(1, std::memory_order_relaxed);
}

bool Turn::Caller::take() {
  if (has_it_) return true;
  if (!turn_.mutex_.try_lock()) return false;
  if (turn_.is_over_) {
    turn_.mutex_.unlock();
    return false;
  }
  // From here on this caller sees all that is queued, so it is the one that the work awaited.
  turn_.taken_.fetch_add(1, std::memory_order_relaxed);
  turn_.awaits_caller_.store(false, std::memory_order_relaxed);
  return has_it_ = true;
}

void Turn::Caller::give_up() {
  if (std::exchange(has_it_, false)) {
    turn_.last_had_.store(Clock::now(), std::memory_order_relaxed);
    turn_.mutex_.unlock();
  }
}

Turn::Caller::~Caller() {
  // In this order: the call comes behind the unlock. The thread that it wakes tries the mutex once, and one that finds
  // the mutex still locked has used the call up and naps again.
  innermost = outer_;
  give_up();
  turn_.callers_.fetch_sub(1, std::memory_order_relaxed);
  if (leaves_work_) turn_.call();
}

}  // namespace lockstep::wire
