// SPDX-License-Identifier: Apache-2.0
// Threads: locks, deadlines, limits, and what a thread or a process owns.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/owner_process.h"
#include "runtime/base/log_limit.h"
#include "runtime/base/mutex.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/base/resource_limit.h"
#include "runtime/base/unwind_guard.h"
#include "tests/support/child.h"
#include "tests/support/error_of.h"
#include "tests/support/limited_to.h"

namespace lockstep::thread_test {
namespace {

using namespace std::chrono_literals;
using testing::error_of;
using testing::expect_text;
using testing::LimitedTo;
using testing::thrown_by;

TEST(Deadline, OfZeroOrLessHasPassed) {
  for (const auto limit : {0ns, -1ns, -5'000'000'000ns}) {
    const Deadline deadline = Deadline::after(limit);
    EXPECT_TRUE(deadline.expired());
    EXPECT_EQ(deadline.remaining(), 0ns);
    EXPECT_EQ(deadline.poll_timeout_ms(), 0);
  }
}

TEST(Deadline, NeverDoesNotPass) {
  const Deadline deadline = Deadline::never();
  EXPECT_TRUE(deadline.is_never());
  EXPECT_FALSE(deadline.expired());
  EXPECT_EQ(deadline.remaining(), Deadline::Duration::max());
  EXPECT_EQ(deadline.poll_timeout_ms(), -1);
  EXPECT_NE(deadline.progress().find("no limit"), std::string::npos);
}

TEST(Deadline, LimitsThatWouldOverflowTheClockAreNever) {
  EXPECT_TRUE(Deadline::after(Deadline::Duration::max()).is_never());
  EXPECT_TRUE(Deadline::after(Deadline::Duration::max() - 1ns).is_never());
  EXPECT_FALSE(Deadline::after(24h * 365 * 99).is_never());
}

TEST(Deadline, FarAwayHasNotPassedAndKeepsItsLimit) {
  const Deadline deadline = Deadline::after(24h);
  EXPECT_FALSE(deadline.expired());
  EXPECT_GT(deadline.remaining(), 23h);
  EXPECT_LE(deadline.remaining(), 24h);
  EXPECT_EQ(deadline.limit(), 24h);
  EXPECT_NE(deadline.progress().find("of 8.64e+04 s"), std::string::npos) << deadline.progress();
}

TEST(Deadline, PollTimeoutRoundsUpAndSaturates) {
  // Rounded down, the last partial millisecond would be a busy loop.
  EXPECT_EQ(Deadline::after(24h * 365).poll_timeout_ms(), INT_MAX);
  const Deadline fraction = Deadline::after(1h + 1ns);
  EXPECT_GT(fraction.poll_timeout_ms(), 0);
  EXPECT_LE(fraction.poll_timeout_ms(), 3'600'001);
}

TEST(Deadline, SoonerTakesTheEarlier) {
  const Deadline day = Deadline::after(24h);
  EXPECT_EQ(day.sooner(1h).limit(), 1h);
  EXPECT_EQ(day.sooner(48h).limit(), 24h);
  EXPECT_EQ(Deadline::never().sooner(1h).limit(), 1h);
  EXPECT_TRUE(Deadline::never().sooner(Deadline::Duration::max()).is_never());
  EXPECT_TRUE(day.sooner(0ns).expired());
}

TEST(LogLimit, AdmitsSoManyLinesInATimeAndCountsTheRest) {
  LogLimit log(3, std::chrono::seconds(10));
  const LogLimit::Time start{std::chrono::seconds(1000)};
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(log.admit(start + std::chrono::seconds(i)));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(log.admit(start + std::chrono::seconds(9)));
  EXPECT_EQ(log.summary_time(), start + std::chrono::seconds(10));
  EXPECT_EQ(log.take_left_out(), 100u);
  EXPECT_EQ(log.take_left_out(), 0u);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(log.admit(start + std::chrono::seconds(10)));
  EXPECT_FALSE(log.admit(start + std::chrono::seconds(19)));
  EXPECT_EQ(log.take_left_out(), 1u);
}

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

sigset_t mask_of_this_thread() {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return mask;
}

TEST(QuietThread, TakesNoSignalOfTheProgramAndLeavesTheCallersMaskAsItWas) {
  sigset_t usr2, before, seen;
  sigemptyset(&usr2);
  sigaddset(&usr2, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &usr2, &before);
  start_quiet_thread([&] { seen = mask_of_this_thread(); }).join();
  const sigset_t after = mask_of_this_thread();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGUSR1, SIGUSR2, SIGCHLD, SIGPROF, SIGWINCH}) {
    EXPECT_EQ(sigismember(&seen, signal), 1) << signal;
    EXPECT_EQ(sigismember(&after, signal), signal == SIGUSR2 ? 1 : 0) << signal;
  }
}

TEST(QuietThread, HasTheNameThatTellsWhoseCodeItRuns) {
  char name[16] = {};
  const auto look = [&] { pthread_getname_np(pthread_self(), name, sizeof name); };
  start_quiet_thread(look).join();
  EXPECT_EQ(std::string(name), kQuietThread);
  start_quiet_thread(look, "lockstep-data").join();
  EXPECT_STREQ(name, "lockstep-data");
}

TEST(ResourceLimit, IsNamedBehindTheErrorThatItCauses) {
  const LimitedTo files(RLIMIT_NOFILE, 64);
  EXPECT_EQ(errno_text(EMFILE), "Too many open files (errno 24: 'ulimit -n' allows 64)");
  const LimitedTo none(RLIMIT_FSIZE, RLIM_INFINITY);
  EXPECT_EQ(resource_limit(RLIMIT_FSIZE), std::nullopt);
  EXPECT_EQ(errno_text(EFBIG), "File too large (errno 27)");
  const LimitedTo size(RLIMIT_FSIZE, 1 << 20);
  EXPECT_EQ(errno_text(EFBIG), "File too large (errno 27: 'ulimit -f' allows 1024 KiB)");
  EXPECT_EQ(resource_limit(RLIMIT_FSIZE), 1u << 20);
}

TEST(ResourceLimit, AThreadThatCannotBeHadIsAnErrorOfOurs) {
  testing::Child child([](const testing::Line&) {
    // A stack that no address space holds: there is no thread to have, whatever the machine's limits are.
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    EXPECT_EQ(pthread_attr_setstacksize(&huge, std::size_t{1} << 46), 0);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
    const auto error = thrown_by<SystemError>([] { start_quiet_thread([] {}).join(); });
    if (!error) return 2;
    EXPECT_EQ(error->error_number(), EAGAIN);
    expect_text(error->what(), {"starting a thread: ", "'ulimit -u'", "'ulimit -v'", "pids.max", "(errno 11)"});
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(child.wait(), 0);
  expect_text(error_of<SystemError>([] { throw_no_thread(EPERM); }), {"a seccomp filter refuses clone3"});
}

// Whether `check` holds in a forked child.
bool in_child(const std::function<bool()>& check) {
  testing::Child child([&](const testing::Line&) { return check() ? 0 : 1; });
  return child.wait() == 0;
}

struct Counted {
  explicit Counted(int& the_ends) : ends(the_ends) {}
  ~Counted() { ++ends; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  int& ends;
};

TEST(OwnerProcess, IsHereAndInNoForkedChild) {
  const OwnerProcess owner;
  EXPECT_TRUE(owner.is_here());
  EXPECT_TRUE(in_child([&] { return !owner.is_here() && OwnerProcess().is_here(); }));
  EXPECT_TRUE(in_child([&] { return in_child([&] { return !owner.is_here(); }); })) << "nor in its child";
  EXPECT_TRUE(owner.is_here());
}

TEST(OwnerProcess, RefusesWithBothProcesses) {
  const OwnerProcess owner;
  owner.require("barrier");
  const std::string parent = std::to_string(::getpid());
  EXPECT_TRUE(in_child([&] {
    return error_of([&] { owner.require("barrier"); })
        .starts_with("barrier: this object belongs to process " + parent + ", and process " +
                     std::to_string(::getpid()) + " was forked from it");
  }));
}

TEST(OwnerProcess, ObjectsEndWhereTheyWereMade) {
  int ends = 0;
  auto unique = make_owned_here<Counted>(ends);
  auto shared = released_by_owner(std::make_shared<Counted>(ends));
  EXPECT_TRUE(in_child([&] {
    unique.reset();
    shared.reset();
    return ends == 0;
  }));
  unique.reset();
  EXPECT_EQ(ends, 1);
  auto copy = shared;
  shared.reset();
  EXPECT_EQ(ends, 1);
  copy.reset();
  EXPECT_EQ(ends, 2);
}

struct Ended {
  explicit Ended(bool& by_exception) : by_exception_(by_exception) {}
  ~Ended() { by_exception_ = guard_.is_unwinding(); }
  bool& by_exception_;
  UnwindGuard guard_;
};

// Makes and ends an Ended in order while an exception unwinds.
struct EndsOneInOrder {
  ~EndsOneInOrder() { const Ended inner(by_exception_); }
  bool& by_exception_;
};

TEST(UnwindGuard, TellsAnExceptionFromAnEndInOrder) {
  bool by_exception = true;
  { const Ended object(by_exception); }
  EXPECT_FALSE(by_exception);
  try {
    const Ended object(by_exception);
    throw std::runtime_error("x");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(by_exception);
  try {
    const EndsOneInOrder object{by_exception};
    throw std::runtime_error("x");
  } catch (const std::runtime_error&) {
  }
  EXPECT_FALSE(by_exception);
}

}  // namespace
}  // namespace lockstep::thread_test
