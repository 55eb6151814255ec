// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/host.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string_view>

#include "tests/support/child.h"

namespace lockstep::host_test {
namespace {

TEST(Host, HasANameAndABootIdThatStays) {
  EXPECT_FALSE(host_name().empty());
  EXPECT_EQ(boot_id().size(), 36u) << boot_id();
  EXPECT_EQ(boot_id(), boot_id());
}

// As a container may be named; every message that has it is one line.
TEST(Host, OfANameOfTwoLinesHasOneLine) {
  testing::Child child([](const testing::Line&) {
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

TEST(Host, IsInANetwork) { EXPECT_TRUE(network_namespace().starts_with("net:[")) << network_namespace(); }

}  // namespace
}  // namespace lockstep::host_test
