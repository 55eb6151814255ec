// SPDX-License-Identifier: Apache-2.0
// Small parts of processes: endings, programs, /proc.
#include "launcher/process/exit_status.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "launcher/base/exit_codes.h"
#include "launcher/process/find_program.h"
#include "launcher/process/process_table.h"
#include "runtime/base/signal_name.h"
#include "runtime/job/exit_code.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::launcher::exit_status_test {
namespace {

TEST(ExitStatus, SpeaksAsShellsCount) {
  const ExitStatus fine;
  const ExitStatus failed{.by_signal = false, .value = 3};
  const ExitStatus killed{.by_signal = true, .value = SIGKILL};
  const ExitStatus dumped{.by_signal = true, .value = SIGSEGV, .dumped_core = true};
  EXPECT_TRUE(fine.ok());
  EXPECT_FALSE(failed.ok());
  EXPECT_EQ(failed.exit_code(), 3);
  EXPECT_EQ(failed.describe(), "exited with code 3");
  EXPECT_EQ(killed.exit_code(), 137);
  EXPECT_EQ(killed.describe(), "was killed by signal 9 (SIGKILL)");
  EXPECT_NE(killed.hint().find("out of memory"), std::string::npos);
  EXPECT_NE(ExitStatus({.by_signal = false, .value = 127}).hint().find("dynamic loader"), std::string::npos);
  EXPECT_EQ(dumped.describe(), "was killed by signal 11 (SIGSEGV), core dumped");
  EXPECT_EQ(signal_name(SIGUSR1), "SIGUSR1");
  const ExitStatus heard_of_it{.by_signal = false, .value = kExitPeerLost};
  EXPECT_TRUE(heard_of_it.is_consequence());
  EXPECT_FALSE(failed.is_consequence());
}

class FindProgram : public ::testing::Test {
 protected:
  FindProgram() { environment_.set("PATH", (root_ / "first").native() + ":" + (root_ / "second").native()); }
  std::string add(const std::string& name, mode_t mode) const { return root_.write(name, "#!/bin/sh\n", mode); }

  const lockstep::testing::TemporaryFolder root_;
  Environment environment_;
};

TEST_F(FindProgram, LooksThroughPathAsShellsDo) {
  add("first/tool", 0644);
  const auto second = add("second/tool", 0755);
  EXPECT_EQ(find_program("tool", environment_).path, second) << "one that can't run is passed over";
  EXPECT_EQ(find_program(second, environment_).path, second);
}

TEST_F(FindProgram, SaysWhatIsWrong) {
  add("first/tool", 0644);
  struct Case {
    std::string name;
    int exit_code;
    const char* problem;
  };
  for (const auto& [name, exit_code, problem] :
       {Case{"nosuchtool", kExitNotFound, "'nosuchtool' was not found in PATH"},
        {"./no/such", kExitNotFound, "No such file"},
        {add("plain", 0644), kExitNotExecutable, "chmod +x"},
        {root_ / "first", kExitNotExecutable, "is a folder"},
        {"", kExitNotFound, ""}}) {
    const auto found = find_program(name, environment_);
    EXPECT_EQ(found.path, "");
    EXPECT_EQ(found.exit_code, exit_code) << name;
    EXPECT_NE(found.problem.find(problem), std::string::npos) << found.problem;
  }
}

TEST(ProcessTable, HoldsThisProcess) {
  const auto table = process_table();
  const auto self = std::find_if(table.begin(), table.end(), [](const auto& entry) { return entry.pid == getpid(); });
  ASSERT_NE(self, table.end());
  EXPECT_EQ(self->parent, getppid());
  EXPECT_EQ(self->group, getpgrp());
  EXPECT_FALSE(process_entry(-5));
}

TEST(ProcessTable, AProcessThatEndsWhileItIsReadIsNoError) {
  for (int round = 0; round < 200; ++round) {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    for (int look = 0; look < 3; ++look) {
      process_entry(child);
      started_with(child, "NAME=value");
    }
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_FALSE(process_entry(child));
  }
}

TEST(ProcessTable, FollowsDescendantsAndLeavesOutSubtrees) {
  const std::vector<ProcessEntry> table = {
      {.pid = 1, .parent = 0},   {.pid = 10, .parent = 1},  {.pid = 11, .parent = 10}, {.pid = 12, .parent = 11},
      {.pid = 20, .parent = 10}, {.pid = 21, .parent = 20}, {.pid = 30, .parent = 1}};
  std::vector<pid_t> pids;
  for (const auto& entry : descendants(table, 10, {20})) pids.push_back(entry.pid);
  EXPECT_EQ(pids, (std::vector<pid_t>{11, 12}));
}

}  // namespace
}  // namespace lockstep::launcher::exit_status_test
