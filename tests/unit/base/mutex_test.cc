// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/mutex.h"

#include <gtest/gtest.h>

#include <thread>

namespace lockstep::mutex_test {
namespace {

using namespace std::chrono_literals;

TEST(Condition, ReportsAPassedDeadline) {
  Mutex mutex;
  Condition condition;
  MutexLock lock(mutex);
  const Deadline passed = Deadline::after(0ns);
  // A wake-up may be spurious, but a deadline that has passed is reported in the end.
  while (condition.wait_until(mutex, passed)) {
  }
  EXPECT_TRUE(passed.expired());
}

TEST(Condition, WakesTheWaiter) {
  for (const auto& deadline : {Deadline::never(), Deadline::after(1h)}) {
    Mutex mutex;
    Condition condition;
    bool set = false;
    std::thread other([&] {
      MutexLock lock(mutex);
      set = true;
      condition.notify_all();
    });
    {
      MutexLock lock(mutex);
      while (!set) ASSERT_TRUE(condition.wait_until(mutex, deadline));
    }
    other.join();
  }
}

// One branch per call, as clang's analysis wants it.
bool can_lock(Mutex& mutex) {
  if (!mutex.try_lock()) return false;
  mutex.unlock();
  return true;
}

TEST(Mutex, TryLockFailsWhileHeld) {
  Mutex mutex;
  mutex.lock();
  bool taken = true;
  std::thread([&] { taken = can_lock(mutex); }).join();
  EXPECT_FALSE(taken);
  mutex.unlock();
  EXPECT_TRUE(can_lock(mutex));
}

}  // namespace
}  // namespace lockstep::mutex_test
