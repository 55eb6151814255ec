// SPDX-License-Identifier: Apache-2.0
// A process that the kernel gives no core to, without having stopped it: no signal, no state 'T', and a SIGKILL that
// has to wait. A control group's freezer, for which root is needed.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/wait_until.h"

namespace lockstep::testing {

class FrozenProcess {
 public:
  // As a sentence for GTEST_SKIP(); empty if a process can be frozen here.
  static std::string why_not() {
    if (!hierarchy().empty() && ::access(hierarchy().c_str(), W_OK) == 0) return {};
    return "no freezer of control groups that this user may write to";
  }

  explicit FrozenProcess(pid_t pid) : group_(hierarchy() / ("lockstep-test-" + std::to_string(pid))), pid_(pid) {
    std::filesystem::create_directory(group_);
    write(group_ / "cgroup.procs", std::to_string(pid_));
    is_version_1() ? write(group_ / "freezer.state", "FROZEN") : write(group_ / "cgroup.freeze", "1");
  }
  ~FrozenProcess() {
    is_version_1() ? write(group_ / "freezer.state", "THAWED") : write(group_ / "cgroup.freeze", "0");
    write(hierarchy() / "cgroup.procs", std::to_string(pid_));
    // The kernel counts a process that has moved, or ended, for a moment longer.
    EXPECT_TRUE(wait_until([&] {
      std::error_code still_used;
      std::filesystem::remove(group_, still_used);
      return !still_used;
    })) << group_;
  }
  FrozenProcess(const FrozenProcess&) = delete;
  FrozenProcess& operator=(const FrozenProcess&) = delete;

 private:
  static bool is_version_1() { return std::filesystem::exists("/sys/fs/cgroup/freezer"); }
  static std::filesystem::path hierarchy() {
    if (is_version_1()) return "/sys/fs/cgroup/freezer";
    return std::filesystem::exists("/sys/fs/cgroup/cgroup.procs") ? "/sys/fs/cgroup" : "";
  }
  static void write(const std::filesystem::path& file, const std::string& text) { std::ofstream(file) << text; }

  std::filesystem::path group_;
  pid_t pid_;
};

}  // namespace lockstep::testing
