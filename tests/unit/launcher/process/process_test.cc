// SPDX-License-Identifier: Apache-2.0
// Processes: endings, programs, /proc, stacks, and whom the guardian kills.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>

#include "launcher/base/exit_codes.h"
#include "launcher/process/exit_status.h"
#include "launcher/process/find_program.h"
#include "launcher/process/guardian.h"
#include "launcher/process/process_table.h"
#include "launcher/process/spawn.h"
#include "launcher/process/stacks.h"
#include "runtime/base/signal_name.h"
#include "runtime/job/exit_code.h"
#include "runtime/net/stream.h"
#include "tests/support/child.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::launcher::process_test {
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

using ::testing::AnyOf;
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

// More lines would be refused as a message to another host.
TEST(Stacks, HaveALimitAndSayHowMuchIsBeyondIt) {
  const testing::TemporaryFolder folder;
  folder.write("eu-stack", "#!/bin/sh\nseq 2500 | sed 's/^/#/'\n", 0755);
  const std::string path = getenv("PATH");
  setenv("PATH", (std::string(folder / "") + ":" + path).c_str(), 1);
  testing::Child child([](const testing::Line&) { return testing::Child::stay(); });
  const auto lines = threads_and_stacks(child.pid(), Deadline::never());
  setenv("PATH", path.c_str(), 1);
  ASSERT_EQ(lines.size(), kMostStackLines);
  // TSan starts a thread of its own in a child.
  EXPECT_THAT(lines.back(), AnyOf("... and 502 lines more", "... and 503 lines more")) << lines[0];
}

// Whom the guardian kills when the launcher has gone, and whom it doesn't.

// Of this process: another test that runs beside it has a guardian too.
const std::string kRunId = "run-of-guardian-test-" + std::to_string(getpid());

class GuardianTest : public ::testing::Test {
 protected:
  GuardianTest() { signal(SIGPIPE, SIG_IGN); }
  ~GuardianTest() override { end_rank(); }
  void begin() {
    life_ = make_pipe();
    guardian_.emplace(Guardian::Marks{.variable = std::string("LOCKSTEP_RUN_ID=") + kRunId,
                                      .life_fd = life_.read_end.get(),
                                      .life_end = life_.write_end.get()});
  }
  void end_rank() {
    if (rank_.pid <= 0) return;
    kill(rank_.pid, SIGKILL);
    waitpid(rank_.pid, nullptr, 0);
    rank_ = {};
  }

  // A process in a group of its own that the guardian is told of, as a rank is.
  void start_rank(const std::string& run_id, bool has_pipe = false) {
    const UniqueFd null = open_file("/dev/null", false);
    SpawnRequest request;
    request.path = "/bin/sleep";
    request.arguments = {"sleep", "3600"};
    request.environment = {"LOCKSTEP_RUN_ID=" + run_id};
    request.stdin_fd = request.stdout_fd = request.stderr_fd = null.get();
    request.inherited_fd = has_pipe ? life_.read_end.get() : null.get();
    request.registration_fd = guardian_->registration_fd();
    sigemptyset(&request.signal_mask);
    request.open_files = net::open_files_limit();
    rank_ = spawn(request);
  }
  // Its destructor waits until the guardian has done its work.
  void close_pipe() { guardian_.reset(); }
  bool rank_lives() const { return !net::wait_readable(rank_.pidfd.get(), Deadline::after({})); }

  Pipe life_;
  std::optional<Guardian> guardian_;
  Spawned rank_;
};

TEST_F(GuardianTest, KillsTheRanksGroupsAndWhatWasStartedForTheJobUnlessAllIsWell) {
  struct Case {
    const char* name;
    std::string run_id;
    bool has_pipe;      // whatever its environment
    bool is_forgotten;  // the number of a rank's group that has ended may be a stranger's
    bool is_well;
    bool lives;
  };
  // Closing the pipe without a word is what an exception does that leaves the launcher.
  for (const Case& it : {Case{"a rank's group", "of another job", false, false, false, false},
                         {"started for the job", kRunId, false, true, false, false},
                         {"has the life pipe", "of another job", true, true, false, false},
                         {"a stranger", "of another job", false, true, false, true},
                         {"all is well", kRunId, false, false, true, true}}) {
    SCOPED_TRACE(it.name);
    begin();
    start_rank(it.run_id, it.has_pipe);
    if (it.is_forgotten) guardian_->forget(rank_.pid);
    if (it.is_well) guardian_->disarm();
    close_pipe();
    EXPECT_EQ(rank_lives(), it.lives);
    end_rank();
  }
}

}  // namespace
}  // namespace lockstep::launcher::process_test
