// SPDX-License-Identifier: Apache-2.0
// What a process leaves on stderr, and how it ends, when nobody catches.
#include "runtime/comm/init/uncaught.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/job/cause.h"
#include "runtime/job/exit_code.h"

namespace lockstep::uncaught_test {
namespace {

class UncaughtDeathTest : public ::testing::Test {
 protected:
  // A fresh process per case: this one may have threads.
  UncaughtDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

void end_with(void (*body)(), int rank = -1) {
  install_uncaught_error_handler();
  install_uncaught_error_handler();  // twice is once
  if (rank >= 0) set_uncaught_error_rank(rank);
  std::thread(body).join();  // outside of the test framework's own try blocks
}

[[noreturn]] void throw_as_torch() {
  throw std::runtime_error(
      "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x6)\n"
      "Exception raised from meta at LinearAlgebra.cpp:94 (most recent call first):\nframe #0: c10::Error");
}
[[noreturn]] void throw_no_memory_of_rank_2() {
  throw make_error<BackendUnavailable>(
      Cause{.kind = Cause::Kind::failed, .rank = 2, .reporter = 2, .text = "no memory"});
}

struct Uncaught {
  void (*body)();
  int rank;
  int code;
  const char* line;
};

TEST_F(UncaughtDeathTest, AnErrorIsOneLineAndAnExitCode) {
  const Uncaught cases[] = {
      {[] { throw Mismatch("another model\nthan rank 0"); }, 3, 1,
       "^\\[lockstep rank 3\\] fatal: another model than rank 0\n$"},
      {[] { throw PeerLost("rank 2 was killed"); }, 3, kExitPeerLost,
       "^\\[lockstep rank 3\\] fatal: rank 2 was killed\n$"},
      // All ranks throw it together, and one of them has the cause.
      {throw_no_memory_of_rank_2, 3, kExitPeerLost, "fatal: no memory\n$"},
      {throw_no_memory_of_rank_2, 2, 1, "fatal: no memory\n$"},
      {[] { throw InvalidArgument("RANK=4"); }, -1, 1, "^\\[lockstep\\] fatal: RANK=4\n$"},
      {[] { throw std::bad_alloc(); }, 3, 1,
       "^\\[lockstep rank 3\\] fatal: out of memory: an allocation failed .*; raise the limit[^\n]*\n$"},
      {[] { throw CorruptData("tensor '\033[2J'"); }, -1, 1, "^\\[lockstep\\] fatal: tensor '\\?\\[2J'\n$"},
      {throw_as_torch, 3, 1,
       "^\\[lockstep rank 3\\] fatal: mat1 and mat2 shapes cannot be multiplied \\(2x3 and 4x6\\)\n$"}};
  for (const Uncaught& one : cases) {
    EXPECT_EXIT(end_with(one.body, one.rank), ::testing::ExitedWithCode(one.code), one.line);
  }
}

TEST_F(UncaughtDeathTest, OtherExceptionsAndBacktracesThatAreAskedForEndAsTheyWouldWithoutUs) {
  EXPECT_EXIT(end_with([] { throw std::logic_error("the program's own"); }), ::testing::KilledBySignal(SIGABRT),
              "the program's own");
  const auto ask_and_throw = [] {
    ::setenv("TORCH_SHOW_CPP_STACKTRACES", "1", 1);
    throw_as_torch();
  };
  EXPECT_EXIT(end_with(ask_and_throw), ::testing::KilledBySignal(SIGABRT), "frame #0: c10::Error");
}

}  // namespace
}  // namespace lockstep::uncaught_test
