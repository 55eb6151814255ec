// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/procfs.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace lockstep::procfs_test {
namespace {

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
}  // namespace lockstep::procfs_test
