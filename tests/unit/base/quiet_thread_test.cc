// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/quiet_thread.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <string>

namespace lockstep::quiet_thread_test {
namespace {

sigset_t mask_of_this_thread() {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return mask;
}

TEST(QuietThread, TakesNoSignalOfTheProgram) {
  sigset_t seen;
  sigemptyset(&seen);
  start_quiet_thread([&] { seen = mask_of_this_thread(); }).join();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGUSR1, SIGUSR2, SIGCHLD, SIGPROF, SIGWINCH}) {
    EXPECT_EQ(sigismember(&seen, signal), 1) << signal;
  }
}

std::string name_of_this_thread() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof name);
  return name;
}

TEST(QuietThread, HasTheNameThatTellsWhoseCodeItRuns) {
  std::string seen;
  start_quiet_thread([&] { seen = name_of_this_thread(); }).join();
  EXPECT_EQ(seen, kQuietThread);
  start_quiet_thread([&] { seen = name_of_this_thread(); }, "lockstep-data").join();
  EXPECT_EQ(seen, "lockstep-data");
}

TEST(QuietThread, LeavesTheCallersMaskAsItWas) {
  sigset_t usr2;
  sigemptyset(&usr2);
  sigaddset(&usr2, SIGUSR2);
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &usr2, &before);
  start_quiet_thread([] {}).join();
  const sigset_t after = mask_of_this_thread();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(sigismember(&after, SIGUSR2), 1);
  EXPECT_EQ(sigismember(&after, SIGTERM), 0);
}

}  // namespace
}  // namespace lockstep::quiet_thread_test
