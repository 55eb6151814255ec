// SPDX-License-Identifier: Apache-2.0
// What this process, its host and others are: cores, names, states.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <set>
#include <string_view>
#include <thread>

#include "lockstep/base/intra_op_threads.h"
#include "runtime/base/cpu.h"
#include "runtime/base/host.h"
#include "runtime/base/process_state.h"
#include "runtime/base/process_token.h"
#include "runtime/base/procfs.h"
#include "tests/support/child.h"

namespace lockstep::process_test {
namespace {

using testing::Child;
using testing::Line;

TEST(AllowedCores, FollowsTheAffinityMask) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_GE(allowed_cores(), 1);
  EXPECT_LE(allowed_cores(), CPU_COUNT(&before));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(allowed_cores(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(IntraOpThreads, TheVariableIsReadAsOpenMpReadsIt) {
  const auto by = [](const std::string& text) { return threads_by_variable(Environment({{"OMP_NUM_THREADS", text}})); };
  EXPECT_EQ(threads_by_variable(Environment()), std::nullopt);
  EXPECT_EQ(by("3"), 3);
  EXPECT_EQ(by("4,2"), 4);
  EXPECT_EQ(by("99999999999"), INT_MAX);
  for (const std::string bad : {"", "0", "-1", "banana", "2x", ",2", "1.5", "99999999999999999999"}) {
    EXPECT_EQ(by(bad), std::nullopt) << bad;
  }
}

TEST(Host, HasANameABootIdThatStaysAndANetwork) {
  EXPECT_FALSE(host_name().empty());
  EXPECT_EQ(boot_id().size(), 36u) << boot_id();
  EXPECT_EQ(boot_id(), boot_id());
  EXPECT_TRUE(network_namespace().starts_with("net:[")) << network_namespace();
}

// As a container may be named; every message that has it is one line.
TEST(Host, OfANameOfTwoLinesHasOneLine) {
  Child child([](const Line&) {
    if (::unshare(CLONE_NEWUTS) != 0) return 77;
    constexpr std::string_view kForged = "a\nlockstep run: all is well";
    EXPECT_EQ(::sethostname(kForged.data(), kForged.size()), 0);
    EXPECT_EQ(host_name(), "a lockstep run: all is well");
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  const int status = child.wait();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "this process may not have a host name of its own";
  EXPECT_EQ(status, 0);
}

TEST(ProcessToken, IsOneForAllThreadsAndAnotherForEachForkedChild) {
  std::set<std::uint64_t> tokens{process_token()};
  std::thread([&] { tokens.insert(process_token()); }).join();
  EXPECT_EQ(tokens.size(), 1u);
  for (int i = 0; i < 3; ++i) {
    Child child([](const Line& line) { return line.tell(process_token()) ? 0 : 1; });
    tokens.insert(child.told<std::uint64_t>());
    EXPECT_EQ(child.wait(), 0);
  }
  EXPECT_EQ(tokens.size(), 4u);
}

TEST(ProcessState, OfATextOfTheKernel) {
  using enum ProcessState;
  const std::pair<const char*, ProcessState> cases[] = {{"S (sleeping)\nTracerPid:\t0\n", running},
                                                        {"R (running)\nTracerPid:\t0\n", running},
                                                        {"D (disk sleep)\nTracerPid:\t0\n", running},
                                                        {"T (stopped)\nTracerPid:\t0\n", stopped},
                                                        {"t (tracing stop)\nTracerPid:\t12\n", traced},
                                                        {"S (sleeping)\nTracerPid:\t12\n", traced},
                                                        {"Z (zombie)\nTracerPid:\t0\nThreads:\t1\n", gone},
                                                        {"Z (zombie)\nTracerPid:\t0\nThreads:\t12\n", running},
                                                        {"X (dead)\nTracerPid:\t0\n", gone}};
  for (const auto& [text, wanted] : cases) {
    EXPECT_EQ(process_state_of_status(std::string("Name:\tx\nState:\t") + text), wanted) << text;
  }
  for (const auto* text : {"", "\n", "State", "State:", "State:\t", "State:\n", "TracerPid:\t12\n", "XState:\tT\n"}) {
    EXPECT_EQ(process_state_of_status(text), unknown) << text;
  }
}

TEST(ProcessState, OfAProcessThatIsStoppedThenTracedThenGone) {
  Child process([](const Line&) { return Child::stay(); });
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

TEST(ProcessStat, ReadsNamesWithParenthesesAndSpaces) {
  const auto entry = parse_process_stat("4711 (a) (b c)) S 12 4700 4700 0 -1 4 1 0 0 0 5 6 0 0 20 0 1 0 123456 789");
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->pid, 4711);
  EXPECT_EQ(entry->name, "a) (b c)");
  EXPECT_EQ(entry->state, 'S');
  EXPECT_EQ(entry->parent, 12);
  EXPECT_EQ(entry->group, 4700);
  EXPECT_EQ(entry->start, 123456);
  EXPECT_TRUE(entry->alive());
  EXPECT_FALSE(parse_process_stat("4711 (a) Z 12 4700 4700")->alive());
  EXPECT_EQ(entry->user, 5);
  EXPECT_EQ(entry->system, 6);
  EXPECT_EQ(parse_process_stat("4711 (a) S 12 4700 4700")->start, 0);
  for (const auto* bad : {"", "1", "1 (", "1 (a)", "1 (a) S", "1 (a) S x 2", "(a) S 1 2", "x (a) S 1 2", ")("}) {
    EXPECT_FALSE(parse_process_stat(bad)) << bad;
  }
}

TEST(ProcessStat, OfThisProcess) {
  const auto entry = process_entry(getpid());
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->parent, getppid());
  EXPECT_GT(entry->start, 0);
}

TEST(HandlesSignal, SaysWhatTheMaskOfCaughtSignalsSays) {
  const std::string status = "Name:\ta\nSigIgn:\tffffffffffffffff\nSigCgt:\t0000000000004002\nCapInh:\t0\n";
  EXPECT_TRUE(handles_signal(status, SIGTERM));
  EXPECT_TRUE(handles_signal(status, SIGINT));
  EXPECT_FALSE(handles_signal(status, SIGUSR1));
  for (const int signal : {-1, 0, 65}) EXPECT_FALSE(handles_signal(status, signal));
  for (const auto* bad : {"", "SigCgt:", "\nSigCgt:\n", "\nSigCgt:\tx"})
    EXPECT_FALSE(handles_signal(bad, SIGTERM)) << bad;
  const auto before = ::signal(SIGUSR2, [](int) {});
  EXPECT_TRUE(handles_signal(read_kernel_file("/proc/self/status"), SIGUSR2));
  ::signal(SIGUSR2, before);
  EXPECT_FALSE(handles_signal(read_kernel_file("/proc/self/status"), SIGUSR2));
}

}  // namespace
}  // namespace lockstep::process_test
