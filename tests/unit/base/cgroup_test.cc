// SPDX-License-Identifier: Apache-2.0
// The limits of control groups, from folders that look like /sys/fs/cgroup.
#include "runtime/base/cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/resource_limit.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::cgroup_test {
namespace {

class CgroupFolder : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const { root_.write(path, text + "\n"); }
  double quota(const std::string& membership) const { return cgroup_cpu_quota(root_, membership); }
  std::optional<std::uint64_t> limit(const std::string& membership) const {
    return cgroup_memory_limit(root_, membership);
  }
  std::optional<std::uint64_t> kills(const std::string& membership) const {
    return cgroup_memory_kills(root_, membership);
  }
  std::uint64_t available(const std::string& membership) const {
    return available_memory("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n", membership, root_);
  }

 private:
  const lockstep::testing::TemporaryFolder root_;
};

using CpuQuota = CgroupFolder;
using MemoryKills = CgroupFolder;
using MemoryLimit = CgroupFolder;
using AvailableMemory = CgroupFolder;

TEST_F(MemoryKills, AreThoseOfTheOwnGroup) {
  write("memory.events", "oom 9\noom_kill 8");
  write("job/memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0");
  EXPECT_EQ(kills("0::/job\n"), 2u) << "the parent's are of others too";
  EXPECT_EQ(kills("0::/job/rank\n"), 2u) << "a group without a count is its parent's";
  EXPECT_EQ(kills("0::/docker/0123\n"), 8u) << "in a container the own group is at the root";
}

TEST_F(MemoryKills, OfVersion1StandInAnotherFile) {
  write("memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4");
  EXPECT_EQ(kills("5:cpu:/job\n4:memory:/job\n"), 4u);
}

TEST_F(MemoryKills, WhereNobodyCountsThereIsNoNumber) {
  write("old/memory.events", "oom 1");
  EXPECT_EQ(kills("0::/old\n"), std::nullopt);
  EXPECT_EQ(kills(""), std::nullopt);
}

TEST_F(CpuQuota, Version2ReadsOwnGroup) {
  write("job/cpu.max", "150000 100000");
  EXPECT_DOUBLE_EQ(quota("0::/job\n"), 1.5);
}

TEST_F(CpuQuota, MaxAndAbsentFilesAreNoLimit) {
  write("job/cpu.max", "max 100000");
  EXPECT_EQ(quota("0::/job\n"), 0);
  EXPECT_EQ(quota("0::/other\n"), 0);
  EXPECT_EQ(quota("0::/\n"), 0);
  EXPECT_EQ(quota(""), 0);
}

TEST_F(CpuQuota, TheTightestAncestorBinds) {
  write("a/cpu.max", "200000 100000");
  write("a/b/cpu.max", "max 100000");
  write("a/b/c/cpu.max", "800000 100000");
  EXPECT_DOUBLE_EQ(quota("0::/a/b/c\n"), 2);
}

TEST_F(CpuQuota, InAContainerTheRootsOwnLimitCounts) {
  // The path is the host's and does not exist below the container's mount.
  write("cpu.max", "50000 100000");
  EXPECT_DOUBLE_EQ(quota("0::/system.slice/docker-0123.scope\n"), 0.5);
  EXPECT_DOUBLE_EQ(quota("0::/\n"), 0.5);
}

TEST_F(CpuQuota, Version1ReadsTheCpuController) {
  write("cpu/docker/7/cpu.cfs_quota_us", "300000");
  write("cpu/docker/7/cpu.cfs_period_us", "100000");
  write("memory/docker/7/cpu.cfs_quota_us", "100000");
  write("memory/docker/7/cpu.cfs_period_us", "100000");
  EXPECT_DOUBLE_EQ(quota("9:memory:/docker/7\n5:cpu,cpuacct:/docker/7\n1:name=systemd:/docker/7\n"), 3);
  EXPECT_EQ(quota("5:cpuset:/docker/7\n4:cpuacct:/docker/7\n"), 0);
}

TEST_F(CpuQuota, Version1MinusOneIsNoLimitAndTheContainersRootCounts) {
  write("cpu/docker/7/cpu.cfs_quota_us", "-1");
  write("cpu/docker/7/cpu.cfs_period_us", "100000");
  EXPECT_EQ(quota("5:cpu,cpuacct:/docker/7\n"), 0);
  write("cpu/cpu.cfs_quota_us", "250000");
  write("cpu/cpu.cfs_period_us", "100000");
  EXPECT_DOUBLE_EQ(quota("5:cpu,cpuacct:/docker/elsewhere\n"), 2.5);
}

TEST_F(CpuQuota, HybridTakesTheTighter) {
  write("cpu/g/cpu.cfs_quota_us", "400000");
  write("cpu/g/cpu.cfs_period_us", "100000");
  write("g/cpu.max", "200000 100000");
  EXPECT_DOUBLE_EQ(quota("5:cpu:/g\n0::/g\n"), 2);
}

TEST_F(CpuQuota, NonsenseIsNoLimit) {
  write("g/cpu.max", "lots");
  write("h/cpu.max", "100000 0");
  for (const char* membership : {"0::/g\n", "0::/h\n", "0::g\n", "no colons", "0:", "::", "\n\n"}) {
    EXPECT_EQ(quota(membership), 0) << membership;
  }
}

TEST_F(MemoryLimit, TakesTheTightestOnTheWayUp) {
  write("a/memory.max", "2048");
  write("a/b/memory.max", "max");
  write("a/b/c/memory.max", "4096");
  EXPECT_EQ(limit("0::/a/b/c\n"), 2048u);
  EXPECT_EQ(limit("0::/elsewhere\n"), std::nullopt);
  write("memory.max", "1024");  // in a container the path may be the host's: the root is what counts
  EXPECT_EQ(limit("0::/elsewhere\n"), 1024u);
}

TEST_F(MemoryLimit, ReadsVersionOne) {
  write("memory/x/memory.limit_in_bytes", "5000");
  write("memory/memory.limit_in_bytes", "9223372036854771712");  // how version 1 says none
  EXPECT_EQ(limit("9:memory:/x\n4:cpu,cpuacct:/y\n"), 5000u);
  EXPECT_EQ(limit("9:memory:/\n"), std::nullopt);
  EXPECT_EQ(limit("nonsense\n\n"), std::nullopt);
}

TEST_F(AvailableMemory, WithoutACgroupItIsWhatTheMachineHas) { EXPECT_EQ(available("0::/\n"), 8000u * 1024); }

TEST_F(AvailableMemory, TheTightestGroupOnTheWayUpDecides) {
  write("job/rank/memory.max", "max");
  write("job/rank/memory.current", "100");
  write("job/memory.max", "5000");
  write("job/memory.current", "1500");
  EXPECT_EQ(available("0::/job/rank\n"), 3500u);
  write("job/rank/memory.max", "120");
  EXPECT_EQ(available("0::/job/rank\n"), 20u);
  write("job/rank/memory.current", "500");
  EXPECT_EQ(available("0::/job/rank\n"), 0u);
}

TEST_F(AvailableMemory, VersionOne) {
  write("memory/job/memory.limit_in_bytes", "7000");
  write("memory/job/memory.usage_in_bytes", "3000");
  EXPECT_EQ(available("4:cpu,cpuacct:/x\n9:memory:/job\n"), 4000u);
  // The group's own numbers stand beside those with its children.
  write("memory/job/memory.stat", "inactive_file 1\ntotal_shmem 900\ntotal_inactive_file 1000\ntotal_active_file 200");
  EXPECT_EQ(available("9:memory:/job\n"), 5200u);
}

TEST_F(AvailableMemory, ThePageCacheIsNotUsedMemory) {
  write("job/memory.max", "5000");
  write("job/memory.current", "4990");
  write("job/memory.stat",
        "anon 500\nfile 4400\nshmem 400\ninactive_anon 700\ninactive_file 3000\nactive_file 1000\n"
        "slab_reclaimable 80\nslab_unreclaimable 10\nworkingset_refault_file 7");
  EXPECT_EQ(available("0::/job\n"), 5000u - (4990u - 4080u));
  write("job/memory.current", "300");  // read at another moment
  EXPECT_EQ(available("0::/job\n"), 5000u);
  write("job/memory.current", "9990");  // the limit was lowered
  EXPECT_EQ(available("0::/job\n"), 0u);
}

TEST(AvailableOfMeminfo, NonsenseIsNone) {
  for (const char* text : {"", "MemAvailable", "MemAvailable:", "MemAvailable: kB", "MemTotal: 5 kB"}) {
    EXPECT_EQ(available_of_meminfo(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace lockstep::cgroup_test
