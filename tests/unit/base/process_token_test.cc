#include "runtime/base/process_token.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <set>
#include <thread>

namespace lockstep {
namespace {

std::uint64_t token_of_a_child() {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::uint64_t token = process_token();
    _exit(write(ends[1], &token, sizeof(token)) == sizeof(token) ? 0 : 1);
  }
  close(ends[1]);
  std::uint64_t token = 0;
  EXPECT_EQ(read(ends[0], &token, sizeof(token)), static_cast<ssize_t>(sizeof(token)));
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return token;
}

TEST(ProcessToken, IsOneForAllThreads) {
  const std::uint64_t own = process_token();
  EXPECT_EQ(process_token(), own);
  std::uint64_t other = 0;
  std::thread([&other] { other = process_token(); }).join();
  EXPECT_EQ(other, own);
}

TEST(ProcessToken, ForkedChildrenHaveTheirOwn) {
  std::set<std::uint64_t> tokens{process_token()};
  for (int i = 0; i < 3; ++i) tokens.insert(token_of_a_child());
  EXPECT_EQ(tokens.size(), 4u);
}

}  // namespace
}  // namespace lockstep
