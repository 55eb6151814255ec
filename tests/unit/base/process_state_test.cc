// SPDX-License-Identifier: Apache-2.0
// What is read out of /proc/PID/status, and what it says of real processes.
#include "runtime/base/process_state.h"

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/child.h"

namespace lockstep::process_state_test {
namespace {

TEST(ProcessState, OfATextOfTheKernel) {
  EXPECT_EQ(process_state_of_status("Name:\tx\nState:\tS (sleeping)\nTracerPid:\t0\n"), ProcessState::running);
  EXPECT_EQ(process_state_of_status("Name:\tx\nState:\tR (running)\nTracerPid:\t0\n"), ProcessState::running);
  EXPECT_EQ(process_state_of_status("Name:\tx\nState:\tD (disk sleep)\nTracerPid:\t0\n"), ProcessState::running);
  EXPECT_EQ(process_state_of_status("Name:\tx\nState:\tT (stopped)\nTracerPid:\t0\n"), ProcessState::stopped);
  EXPECT_EQ(process_state_of_status("Name:\tx\nState:\tt (tracing stop)\nTracerPid:\t12\n"), ProcessState::traced);
  EXPECT_EQ(process_state_of_status("Name:\tx\nState:\tS (sleeping)\nTracerPid:\t12\n"), ProcessState::traced);
  EXPECT_EQ(process_state_of_status("Name:\tx\nState:\tZ (zombie)\nTracerPid:\t0\nThreads:\t1\n"), ProcessState::gone);
  EXPECT_EQ(process_state_of_status("Name:\tx\nState:\tZ (zombie)\nTracerPid:\t0\nThreads:\t12\n"),
            ProcessState::running);
  EXPECT_EQ(process_state_of_status("Name:\tx\nState:\tX (dead)\nTracerPid:\t0\n"), ProcessState::gone);
}

TEST(ProcessState, OfATextThatIsNone) {
  for (const auto* text : {"", "\n", "State", "State:", "State:\t", "State:\n", "TracerPid:\t12\n", "XState:\tT\n"}) {
    EXPECT_EQ(process_state_of_status(text), ProcessState::unknown) << text;
  }
}

TEST(ProcessState, OfAProcessThatIsStoppedThenTracedThenGone) {
  testing::Child process([](const testing::Line&) { return testing::Child::stay(); });
  const pid_t child = process.pid();
  EXPECT_EQ(process_state(child), ProcessState::running);
  ASSERT_NO_FATAL_FAILURE(process.stop());
  EXPECT_EQ(process_state(child), ProcessState::stopped);
  ASSERT_EQ(ptrace(PTRACE_SEIZE, child, nullptr, nullptr), 0);
  EXPECT_EQ(process_state(child), ProcessState::traced);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(process_state(child), ProcessState::gone) << "a zombie";
  process.wait();
  EXPECT_EQ(process_state(child), ProcessState::gone);
}

TEST(ProcessState, OfThisProcess) {
  EXPECT_EQ(process_state(getpid()) == ProcessState::traced, this_process_is_traced());
  EXPECT_FALSE(pid_namespace().empty());
}

}  // namespace
}  // namespace lockstep::process_state_test
