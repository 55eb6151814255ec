// SPDX-License-Identifier: Apache-2.0
#include "launcher/watch/stacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Stacks, OfEuStackHaveEachFramesLineBehindIt) {
  EXPECT_THAT(frames_in("PID 12 - process\n"
                        "TID 12:\n"
                        "#0  0x00007fed7f0f1df2 __libc_pause\n"
                        "    ../sysdeps/unix/sysv/linux/pause.c:29:10\n"
                        "#1  0x0000561d8d93a1ff load(int)\n"
                        "    /src/my train.cc:3:61\n"
                        "#2  0x00007fed7f2d44a3\n"
                        "eu-stack: tid 12: not found\n"),
              ElementsAre("TID 12:", "#0  0x00007fed7f0f1df2 __libc_pause at ../sysdeps/unix/sysv/linux/pause.c:29:10",
                          "#1  0x0000561d8d93a1ff load(int) at /src/my train.cc:3:61", "#2  0x00007fed7f2d44a3"));
}

TEST(Stacks, OfGdbAreWithoutWhatItSaysOfItself) {
  EXPECT_THAT(
      frames_in("[New LWP 13]\nUsing host libthread_db library \"x\".\n29\t    in pause.c\n\n"
                "Thread 1 (Thread 0x7f (LWP 12) \"t\"):\n#0  load (x=1) at t.cc:3\n#1  main () at t.cc:5\n"
                "[Inferior 1 (process 12) detached]\n"),
      ElementsAre("Thread 1 (Thread 0x7f (LWP 12) \"t\"):", "#0  load (x=1) at t.cc:3", "#1  main () at t.cc:5"));
  EXPECT_THAT(frames_in("    \n\n"), IsEmpty());
}

TEST(Stacks, OfAProcessThatHasEndedAreNone) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED), 0);
  EXPECT_THAT(threads_and_stacks(child, Deadline::never()), IsEmpty());
  EXPECT_THAT(stacks_of_hung_rank(child), IsEmpty());
}

}  // namespace
}  // namespace lockstep::launcher
