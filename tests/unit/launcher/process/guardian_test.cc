// SPDX-License-Identifier: Apache-2.0
// Whom the guardian kills when the launcher has gone, and whom it doesn't.
#include "launcher/process/guardian.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "launcher/process/spawn.h"
#include "runtime/net/stream.h"

namespace lockstep::launcher::guardian_test {
namespace {

// Of this process: another test that runs beside it has a guardian too.
const std::string kRunId = "run-of-guardian-test-" + std::to_string(getpid());

class GuardianTest : public ::testing::Test {
 protected:
  GuardianTest() { signal(SIGPIPE, SIG_IGN); }
  ~GuardianTest() override {
    if (rank_.pid <= 0) return;
    kill(rank_.pid, SIGKILL);
    waitpid(rank_.pid, nullptr, 0);
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

  Pipe life_ = make_pipe();
  std::optional<Guardian> guardian_{std::in_place, Guardian::Marks{.variable = std::string("LOCKSTEP_RUN_ID=") + kRunId,
                                                                   .life_fd = life_.read_end.get(),
                                                                   .life_end = life_.write_end.get()}};
  Spawned rank_;
};

TEST_F(GuardianTest, KillsTheRanksGroupsWhenNobodySaysThatAllIsWell) {
  start_rank("of another job");
  close_pipe();  // as an exception that leaves the launcher does
  EXPECT_FALSE(rank_lives());
}

TEST_F(GuardianTest, KillsWhatWasStartedForTheJobWhateverItsGroup) {
  start_rank(kRunId);
  guardian_->forget(rank_.pid);
  close_pipe();
  EXPECT_FALSE(rank_lives());
}

TEST_F(GuardianTest, KillsWhoHasTheLifePipeWhateverItsGroupAndEnvironment) {
  start_rank("of another job", true);
  guardian_->forget(rank_.pid);
  close_pipe();
  EXPECT_FALSE(rank_lives());
}

TEST_F(GuardianTest, LeavesAGroupThatItWasToldToForget) {
  // The number of a rank's group that has ended may be a stranger's.
  start_rank("of another job");
  guardian_->forget(rank_.pid);
  close_pipe();
  EXPECT_TRUE(rank_lives());
}

TEST_F(GuardianTest, KillsNobodyOnceAllIsWell) {
  start_rank(kRunId);
  guardian_->disarm();
  close_pipe();
  EXPECT_TRUE(rank_lives());
}

}  // namespace
}  // namespace lockstep::launcher::guardian_test
