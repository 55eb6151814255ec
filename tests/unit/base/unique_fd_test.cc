// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/unique_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>

namespace lockstep::unique_fd_test {
namespace {

int open_null() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0 || errno != EBADF; }

TEST(UniqueFd, ClosesAtTheEnd) {
  int number = -1;
  {
    const UniqueFd fd(open_null());
    ASSERT_TRUE(fd);
    number = fd.get();
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
}

TEST(UniqueFd, MovesOwnership) {
  UniqueFd first(open_null());
  const int number = first.get();
  UniqueFd second(std::move(first));
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): what a moved-from descriptor holds is the test
  EXPECT_EQ(second.get(), number);
  UniqueFd third(open_null());
  const int replaced = third.get();
  third = std::move(second);
  EXPECT_EQ(third.get(), number);
  EXPECT_FALSE(is_open(replaced));
  UniqueFd& alias = third;
  third = std::move(alias);
  EXPECT_TRUE(is_open(number));
}

TEST(UniqueFd, ReleaseGivesTheDescriptorAway) {
  UniqueFd fd(open_null());
  const int number = fd.release();
  fd.reset();
  EXPECT_TRUE(is_open(number));
  UniqueFd again(number);
  again.reset();
  EXPECT_FALSE(is_open(number));
}

TEST(UniqueFd, EmptyOwnsNothing) {
  UniqueFd fd;
  EXPECT_FALSE(fd);
  EXPECT_EQ(fd.get(), -1);
  fd.reset();
}

// A program that was started as `program <&- >&- 2>&-`.
TEST(UniqueFd, LeavesTheNumbersOfClosedStreamsAlone) {
  EXPECT_EXIT(
      {
        for (int stream = 0; stream < 3; ++stream) ::close(stream);
        const UniqueFd made(open_null());
        UniqueFd set;
        set.reset(open_null());
        const UniqueFd copy = duplicate(made.get());
        const UniqueFd inherited(::open("/dev/null", O_RDONLY));  // NOLINT(android-cloexec-open)
        bool right = made.get() > 2 && set.get() > 2 && copy.get() > 2 && inherited.get() > 2;
        for (int stream = 0; stream < 3; ++stream) right = right && !is_open(stream);
        right = right && ::fcntl(made.get(), F_GETFD) == FD_CLOEXEC && ::fcntl(inherited.get(), F_GETFD) == 0;
        ::_exit(right ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lockstep::unique_fd_test
