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

TEST_F(UncaughtDeathTest, AnErrorIsOneLineAndExitCodeOne) {
  EXPECT_EXIT(end_with([] { throw Mismatch("another model\nthan rank 0"); }, 3), ::testing::ExitedWithCode(1),
              "^\\[lockstep rank 3\\] fatal: another model than rank 0\n$");
}

TEST_F(UncaughtDeathTest, ALostPeerHasAnExitCodeOfItsOwn) {
  EXPECT_EXIT(end_with([] { throw PeerLost("rank 2 was killed"); }, 3), ::testing::ExitedWithCode(kExitPeerLost),
              "^\\[lockstep rank 3\\] fatal: rank 2 was killed\n$");
}

// All ranks throw it together, and one of them has the cause.
TEST_F(UncaughtDeathTest, WhatAnotherRankFailedInHasTheExitCodeOfALostPeer) {
  const auto no_memory = [] {
    throw make_error<BackendUnavailable>(
        Cause{.kind = Cause::Kind::failed, .rank = 2, .reporter = 2, .text = "no memory"});
  };
  EXPECT_EXIT(end_with(no_memory, 3), ::testing::ExitedWithCode(kExitPeerLost), "fatal: no memory\n$");
  EXPECT_EXIT(end_with(no_memory, 2), ::testing::ExitedWithCode(1), "fatal: no memory\n$");
}

TEST_F(UncaughtDeathTest, BeforeTheRankIsKnownTheLineHasNone) {
  EXPECT_EXIT(end_with([] { throw InvalidArgument("RANK=4"); }), ::testing::ExitedWithCode(1),
              "^\\[lockstep\\] fatal: RANK=4\n$");
}

TEST_F(UncaughtDeathTest, MemoryThatHasRunOutIsOneLine) {
  EXPECT_EXIT(end_with([] { throw std::bad_alloc(); }, 3), ::testing::ExitedWithCode(1),
              "^\\[lockstep rank 3\\] fatal: out of memory: an allocation failed .*; raise the limit[^\n]*\n$");
}

TEST_F(UncaughtDeathTest, WhatATerminalWouldObeyIsNotWritten) {
  EXPECT_EXIT(end_with([] { throw CorruptData("tensor '\033[2J'"); }), ::testing::ExitedWithCode(1),
              "^\\[lockstep\\] fatal: tensor '\\?\\[2J'\n$");
}

void throw_as_torch() {
  throw std::runtime_error(
      "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x6)\n"
      "Exception raised from meta at LinearAlgebra.cpp:94 (most recent call first):\nframe #0: c10::Error");
}

TEST_F(UncaughtDeathTest, AnErrorOfLibTorchsIsItsCauseInOneLine) {
  EXPECT_EXIT(end_with(throw_as_torch, 3), ::testing::ExitedWithCode(1),
              "^\\[lockstep rank 3\\] fatal: mat1 and mat2 shapes cannot be multiplied \\(2x3 and 4x6\\)\n$");
}

TEST_F(UncaughtDeathTest, AnErrorOfLibTorchsHasItsBacktraceWhereThatIsAskedFor) {
  const auto ask_and_throw = [] {
    ::setenv("TORCH_SHOW_CPP_STACKTRACES", "1", 1);
    throw_as_torch();
  };
  EXPECT_EXIT(end_with(ask_and_throw), ::testing::KilledBySignal(SIGABRT), "frame #0: c10::Error");
}

TEST_F(UncaughtDeathTest, OtherExceptionsEndAsTheyWouldWithoutUs) {
  EXPECT_EXIT(end_with([] { throw std::logic_error("the program's own"); }), ::testing::KilledBySignal(SIGABRT),
              "the program's own");
}

}  // namespace
}  // namespace lockstep::uncaught_test
