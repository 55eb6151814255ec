// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/stacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::launcher::stacks_test {
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

const std::vector<ThreadState> kThreads = {{15, "lockstep", true, "sleeping in do_epoll_wait"},
                                           {12, "train", true, "sleeping in futex_wait_queue"},
                                           {13, "lockstep-data", true, "sleeping in pipe_read"},
                                           {14, "lockstep", false, "running"},
                                           {16, "lockstep", true, "sleeping in futex_wait_queue"}};

TEST(Stacks, StandBelowTheirThreadsTheMainOneFirstAndThreadsAtRestAreOneLine) {
  EXPECT_THAT(
      lines_by_thread(12, kThreads,
                      frames_in("TID 12:\n#0  0x7f wait\n#1  0x7f (LWP 13)\nTID 13:\n#0  0x7f read\n    batch.cc:3:1\n"
                                "TID 14:\n#0  0x7f send\nTID 15:\n#0  0x7f epoll_wait\nTID 16:\n#0  0x7f futex\n")),
      ElementsAre("thread 12 (train): sleeping in futex_wait_queue", "#0  0x7f wait", "#1  0x7f (LWP 13)",
                  "thread 13 (lockstep-data): sleeping in pipe_read", "#0  0x7f read at batch.cc:3:1",
                  "thread 14 (lockstep): running", "#0  0x7f send",
                  "2 threads of lockstep's own wait for work: 15, 16"));
  EXPECT_THAT(lines_by_thread(12, {kThreads[0], kThreads[1]},
                              frames_in("Thread 1 (Thread 0x7f (LWP 12) \"train\"):\n#0  load (x=1) at t.cc:3\n"
                                        "Thread 2 (Thread 0x7e (LWP 15) \"lockstep\"):\n#0  epoll_wait () at e.c:1\n")),
              ElementsAre("thread 12 (train): sleeping in futex_wait_queue", "#0  load (x=1) at t.cc:3",
                          "1 thread of lockstep's own waits for work: 15"));
  EXPECT_THAT(lines_by_thread(15, {kThreads[0]}, {}), ElementsAre("thread 15 (lockstep): sleeping in do_epoll_wait"))
      << "the main thread is shown whatever its name is";
}

TEST(Stacks, OfGdbWithoutAThreadLibraryStandBelowTheirThreads) {
  EXPECT_THAT(lines_by_thread(12, {kThreads[1], kThreads[2]},
                              frames_in("Thread 2 (LWP 13 \"lockstep-data\"):\n#0  read () at r.c:1\n"
                                        "Thread 1 (process 12):\n#0  wait () at w.c:1\n")),
              ElementsAre("thread 12 (train): sleeping in futex_wait_queue", "#0  wait () at w.c:1",
                          "thread 13 (lockstep-data): sleeping in pipe_read", "#0  read () at r.c:1"));
}

TEST(Stacks, OfThreadsThatAreNotListedAreShownToo) {
  EXPECT_THAT(lines_by_thread(12, {kThreads[1], kThreads[0]},
                              frames_in("#0  0x7f stray\nTID 12:\n#0  0x7f wait\nThread 3 (of some kind):\n"
                                        "#0  0x7f other\nTID 99:\n#0  0x7f new\nTID 15:\n#0  0x7f epoll_wait\n")),
              ElementsAre("thread 12 (train): sleeping in futex_wait_queue", "#0  0x7f wait", "#0  0x7f stray",
                          "Thread 3 (of some kind):", "#0  0x7f other", "TID 99:", "#0  0x7f new",
                          "1 thread of lockstep's own waits for work: 15"));
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
}  // namespace lockstep::launcher::stacks_test
