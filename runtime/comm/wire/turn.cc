// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/turn.h"

#include <algorithm>
#include <utility>

namespace lockstep::wire {
namespace {

thread_local Turn::Caller* innermost = nullptr;

}  // namespace

void Turn::take() {
  if (!is_wanted() && mutex_.try_lock()) return;
  std::chrono::microseconds most = kShortNap;
  for (;;) {
    const std::uint64_t taken = taken_.load(std::memory_order_relaxed);
    const bool is_called = nap(most);
    most = std::min(2 * most, kLongNap);
    const bool callers_follow = is_wanted() || (taken_.load(std::memory_order_relaxed) != taken &&
                                                !awaits_caller_.load(std::memory_order_relaxed));
    if (!is_called && callers_follow) continue;
    if (mutex_.try_lock()) return;
  }
}

void Turn::end() {
  is_over_ = true;
  mutex_.unlock();
}

bool Turn::nap(std::chrono::microseconds most) {
  MutexLock lock(nap_mutex_);
  is_napping_.store(true, std::memory_order_relaxed);
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
  if (!is_napping_.load(std::memory_order_relaxed) || is_wanted()) return;
  if (Clock::now() - last_had_.load(std::memory_order_relaxed) > kGap) return call();
  awaits_caller_.store(true, std::memory_order_relaxed);
}

void Turn::give_up_of_this_thread() {
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
  innermost = outer_;
  give_up();
  turn_.callers_.fetch_sub(1, std::memory_order_relaxed);
  if (leaves_work_) turn_.call();
}

}  // namespace lockstep::wire
