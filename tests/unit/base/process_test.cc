// SPDX-License-Identifier: Apache-2.0
// What this process, its host and others are: cores, names, states; and the limits of their control groups.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/intra_op_threads.h"
#include "runtime/base/cgroup.h"
#include "runtime/base/cpu.h"
#include "runtime/base/host.h"
#include "runtime/base/process_state.h"
#include "runtime/base/process_token.h"
#include "runtime/base/procfs.h"
#include "runtime/base/resource_limit.h"
#include "tests/support/child.h"
#include "tests/support/temporary_folder.h"

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

template <typename T>
struct Folder {
  const char* what;
  std::vector<std::pair<std::string, std::string>> files;
  std::vector<std::pair<std::string, T>> wanted;  // by what /proc/self/cgroup says
};

template <typename T, typename Read>
void expect_each(Read read, const std::vector<Folder<T>>& folders) {
  for (const Folder<T>& folder : folders) {
    const lockstep::testing::TemporaryFolder root;
    for (const auto& [path, text] : folder.files) root.write(path, text + "\n");
    for (const auto& [membership, wanted] : folder.wanted) {
      EXPECT_EQ(read(root, membership), wanted) << folder.what << ", " << membership;
    }
  }
}

TEST(Cgroup, MemoryKillsAreThoseOfTheOwnGroup) {
  expect_each<std::optional<std::uint64_t>>(
      cgroup_memory_kills, {{"the parent's are of others too",
                             {{"memory.events", "oom 9\noom_kill 8"},
                              {"job/memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0"}},
                             {{"0::/job\n", 2},
                              {"0::/job/rank\n", 2},       // a group without a count is its parent's
                              {"0::/docker/0123\n", 8}}},  // in a container the own group is at the root
                            {"version 1",
                             {{"memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4"}},
                             {{"5:cpu:/job\n4:memory:/job\n", 4}}},
                            {"nobody counts", {{"old/memory.events", "oom 1"}}, {{"0::/old\n", {}}, {"", {}}}}});
}

TEST(Cgroup, CpuQuotaIsTheTightestOnTheWayUp) {
  const std::string period = "100000";
  expect_each<double>(
      cgroup_cpu_quota,
      {{"own group",
        {{"job/cpu.max", "150000 100000"}},
        {{"0::/job\n", 1.5}, {"0::/other\n", 0}, {"0::/\n", 0}, {"", 0}}},
       {"no limit", {{"job/cpu.max", "max 100000"}}, {{"0::/job\n", 0}}},
       {"ancestors",
        {{"a/cpu.max", "200000 100000"}, {"a/b/cpu.max", "max 100000"}, {"a/b/c/cpu.max", "800000 100000"}},
        {{"0::/a/b/c\n", 2}}},
       // The path is the host's and does not exist below the container's mount.
       {"a container", {{"cpu.max", "50000 100000"}}, {{"0::/system.slice/docker-0123.scope\n", 0.5}, {"0::/\n", 0.5}}},
       {"version 1",
        {{"cpu/docker/7/cpu.cfs_quota_us", "300000"},
         {"cpu/docker/7/cpu.cfs_period_us", period},
         {"memory/docker/7/cpu.cfs_quota_us", "100000"},
         {"memory/docker/7/cpu.cfs_period_us", period}},
        {{"9:memory:/docker/7\n5:cpu,cpuacct:/docker/7\n1:name=systemd:/docker/7\n", 3},
         {"5:cpuset:/docker/7\n4:cpuacct:/docker/7\n", 0}}},
       {"no limit of version 1",
        {{"cpu/docker/7/cpu.cfs_quota_us", "-1"}, {"cpu/docker/7/cpu.cfs_period_us", period}},
        {{"5:cpu,cpuacct:/docker/7\n", 0}}},
       {"a container of version 1",
        {{"cpu/cpu.cfs_quota_us", "250000"}, {"cpu/cpu.cfs_period_us", period}},
        {{"5:cpu,cpuacct:/docker/elsewhere\n", 2.5}}},
       {"both versions",
        {{"cpu/g/cpu.cfs_quota_us", "400000"}, {"cpu/g/cpu.cfs_period_us", period}, {"g/cpu.max", "200000 100000"}},
        {{"5:cpu:/g\n0::/g\n", 2}}},
       {"nonsense",
        {{"g/cpu.max", "lots"}, {"h/cpu.max", "100000 0"}},
        {{"0::/g\n", 0}, {"0::/h\n", 0}, {"0::g\n", 0}, {"no colons", 0}, {"0:", 0}, {"::", 0}, {"\n\n", 0}}}});
}

TEST(Cgroup, MemoryLimitIsTheTightestOnTheWayUp) {
  expect_each<std::optional<std::uint64_t>>(
      cgroup_memory_limit, {{"ancestors",
                             {{"a/memory.max", "2048"}, {"a/b/memory.max", "max"}, {"a/b/c/memory.max", "4096"}},
                             {{"0::/a/b/c\n", 2048}, {"0::/elsewhere\n", {}}}},
                            {"in a container the root counts", {{"memory.max", "1024"}}, {{"0::/elsewhere\n", 1024}}},
                            {"version 1",
                             {{"memory/x/memory.limit_in_bytes", "5000"},
                              {"memory/memory.limit_in_bytes", "9223372036854771712"}},  // how version 1 says none
                             {{"9:memory:/x\n4:cpu,cpuacct:/y\n", 5000}, {"9:memory:/\n", {}}, {"nonsense\n\n", {}}}}});
}

TEST(Cgroup, AvailableMemoryIsWhatTheTightestGroupLeaves) {
  const auto job = [](const char* current, const char* stat) {
    return std::vector<std::pair<std::string, std::string>>{
        {"job/memory.max", "5000"}, {"job/memory.current", current}, {"job/memory.stat", stat}};
  };
  // The page cache is not used memory.
  const char* const cached =
      "anon 500\nfile 4400\nshmem 400\ninactive_anon 700\ninactive_file 3000\nactive_file 1000\n"
      "slab_reclaimable 80\nslab_unreclaimable 10\nworkingset_refault_file 7";
  const std::pair<std::string, std::string> max_1{"memory/job/memory.limit_in_bytes", "7000"};
  const std::pair<std::string, std::string> usage_1{"memory/job/memory.usage_in_bytes", "3000"};
  expect_each<std::uint64_t>(
      [](const std::string& root, const std::string& membership) {
        return available_memory("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n", membership, root);
      },
      {{"what the machine has", {}, {{"0::/\n", 8000 * 1024}}},
       {"the parent's",
        {{"job/rank/memory.max", "max"},
         {"job/rank/memory.current", "100"},
         {"job/memory.max", "5000"},
         {"job/memory.current", "1500"}},
        {{"0::/job/rank\n", 3500}}},
       {"the group's own",
        {{"job/rank/memory.max", "120"},
         {"job/rank/memory.current", "100"},
         {"job/memory.max", "5000"},
         {"job/memory.current", "1500"}},
        {{"0::/job/rank\n", 20}}},
       {"the limit was lowered", {{"job/memory.max", "120"}, {"job/memory.current", "500"}}, {{"0::/job/rank\n", 0}}},
       {"version 1", {max_1, usage_1}, {{"4:cpu,cpuacct:/x\n9:memory:/job\n", 4000}}},
       // The group's own numbers stand next to those with its children.
       {"version 1 with page cache",
        {max_1,
         usage_1,
         {"memory/job/memory.stat",
          "inactive_file 1\ntotal_shmem 900\ntotal_inactive_file 1000\ntotal_active_file 200"}},
        {{"9:memory:/job\n", 5200}}},
       {"page cache", job("4990", cached), {{"0::/job\n", 5000 - (4990 - 4080)}}},
       {"page cache, read at another moment", job("300", cached), {{"0::/job\n", 5000}}},
       {"page cache, the limit was lowered", job("9990", cached), {{"0::/job\n", 0}}}});
  for (const char* text : {"", "MemAvailable", "MemAvailable:", "MemAvailable: kB", "MemTotal: 5 kB"}) {
    EXPECT_EQ(available_of_meminfo(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace lockstep::process_test
