// SPDX-License-Identifier: Apache-2.0
// The limits of control groups, from folders that look like /sys/fs/cgroup.
#include "runtime/base/cgroup.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/resource_limit.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::cgroup_test {
namespace {

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
      [](const std::filesystem::path& root, const std::string& membership) {
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
}  // namespace lockstep::cgroup_test
