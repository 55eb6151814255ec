#include "runtime/base/cpu.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>

namespace lockstep {
namespace {

// A folder that looks like /sys/fs/cgroup.
class CgroupQuota : public testing::Test {
 protected:
  CgroupQuota() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep_cgroup_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
    root_ = name;
  }
  ~CgroupQuota() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    const auto file = std::filesystem::path(root_ + "/" + path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  double quota(const std::string& membership) const { return cgroup_cpu_quota(root_, membership); }

 private:
  std::string root_;
};

TEST_F(CgroupQuota, Version2ReadsOwnGroup) {
  write("job/cpu.max", "150000 100000");
  EXPECT_DOUBLE_EQ(quota("0::/job\n"), 1.5);
}

TEST_F(CgroupQuota, MaxAndAbsentFilesAreNoLimit) {
  write("job/cpu.max", "max 100000");
  EXPECT_EQ(quota("0::/job\n"), 0);
  EXPECT_EQ(quota("0::/other\n"), 0);
  EXPECT_EQ(quota("0::/\n"), 0);
  EXPECT_EQ(quota(""), 0);
}

TEST_F(CgroupQuota, TheTightestAncestorBinds) {
  write("a/cpu.max", "200000 100000");
  write("a/b/cpu.max", "max 100000");
  write("a/b/c/cpu.max", "800000 100000");
  EXPECT_DOUBLE_EQ(quota("0::/a/b/c\n"), 2);
}

TEST_F(CgroupQuota, InAContainerTheRootsOwnLimitCounts) {
  // The path is the host's and does not exist below the container's mount.
  write("cpu.max", "50000 100000");
  EXPECT_DOUBLE_EQ(quota("0::/system.slice/docker-0123.scope\n"), 0.5);
  EXPECT_DOUBLE_EQ(quota("0::/\n"), 0.5);
}

TEST_F(CgroupQuota, Version1ReadsTheCpuController) {
  write("cpu/docker/7/cpu.cfs_quota_us", "300000");
  write("cpu/docker/7/cpu.cfs_period_us", "100000");
  write("memory/docker/7/cpu.cfs_quota_us", "100000");
  write("memory/docker/7/cpu.cfs_period_us", "100000");
  EXPECT_DOUBLE_EQ(quota("9:memory:/docker/7\n5:cpu,cpuacct:/docker/7\n1:name=systemd:/docker/7\n"), 3);
  EXPECT_EQ(quota("5:cpuset:/docker/7\n4:cpuacct:/docker/7\n"), 0);
}

TEST_F(CgroupQuota, Version1MinusOneIsNoLimitAndTheContainersRootCounts) {
  write("cpu/docker/7/cpu.cfs_quota_us", "-1");
  write("cpu/docker/7/cpu.cfs_period_us", "100000");
  EXPECT_EQ(quota("5:cpu,cpuacct:/docker/7\n"), 0);
  write("cpu/cpu.cfs_quota_us", "250000");
  write("cpu/cpu.cfs_period_us", "100000");
  EXPECT_DOUBLE_EQ(quota("5:cpu,cpuacct:/docker/elsewhere\n"), 2.5);
}

TEST_F(CgroupQuota, HybridTakesTheTighter) {
  write("cpu/g/cpu.cfs_quota_us", "400000");
  write("cpu/g/cpu.cfs_period_us", "100000");
  write("g/cpu.max", "200000 100000");
  EXPECT_DOUBLE_EQ(quota("5:cpu:/g\n0::/g\n"), 2);
}

TEST_F(CgroupQuota, NonsenseIsNoLimit) {
  write("g/cpu.max", "lots");
  write("h/cpu.max", "100000 0");
  for (const char* membership : {"0::/g\n", "0::/h\n", "0::g\n", "no colons", "0:", "::", "\n\n"}) {
    EXPECT_EQ(quota(membership), 0) << membership;
  }
}

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

}  // namespace
}  // namespace lockstep
