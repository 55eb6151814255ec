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
}  // namespace lockstep::launcher::guardian_test
