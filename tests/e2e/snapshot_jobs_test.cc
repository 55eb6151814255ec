// SPDX-License-Identifier: Apache-2.0
// Jobs of real processes with snapshots, stopped or killed at any moment: the end has the bits of an undisturbed run.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "runtime/base/exit_code.h"
#include "runtime/base/unique_fd.h"
#include "tests/e2e/launch.h"
#include "tests/e2e/mpi.h"
#include "tests/e2e/training_job.h"
#include "tests/support/rank_processes.h"

namespace lockstep::e2e {
namespace {

namespace fs = std::filesystem;

class SnapshotJob : public TrainingJob {
 protected:
  // Its snapshots, newest first.
  std::vector<std::int64_t> steps_in(const std::string& name) const {
    std::vector<std::int64_t> steps;
    for (const auto& entry : fs::directory_iterator(file(name))) {
      const std::string path = entry.path().filename().string();
      if (fs::exists(entry.path() / "manifest.json")) steps.push_back(std::stoll(path.substr(5)));
    }
    std::sort(steps.rbegin(), steps.rend());
    return steps;
  }
};

struct Backend {
  const char* name;
  bool is_built;
};
void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

class SnapshotJobOn : public SnapshotJob, public ::testing::WithParamInterface<Backend> {
 protected:
  void SetUp() override {
    if (!GetParam().is_built) GTEST_SKIP() << "the plug-in " << GetParam().name << " is not built";
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, SnapshotJobOn, ::testing::Values(Backend{"shm", true}, Backend{"gloo", HAS_GLOO}),
                         [](const auto& of) { return of.param.name; });

// A line behind which the next signal comes: of the loop of training, of a snapshot in the background, of an
// evaluation.
std::string phase(std::mt19937& random, std::int64_t done) {
  switch (random() % 3) {
    case 0: return "at " + std::to_string(10 * (done / 10 + 1 + static_cast<std::int64_t>(random() % 4))) + "\n";
    case 1: return "evaluating ";
    default: return "is saved in";
  }
}

// LOCKSTEP_TEST_STOPS: how many, 30 in the night.
TEST_P(SnapshotJobOn, StoppedAgainAndAgainInAnyPhaseEndsWithTheSameBits) {
  const char* const wanted = std::getenv("LOCKSTEP_TEST_STOPS");
  const int stops = wanted == nullptr ? 4 : std::atoi(wanted);
  const int steps = kSteps + 200 * stops;
  const std::string backend = GetParam().name;
  const std::string whole = undisturbed(2, backend, steps);
  std::mt19937 random(17);
  std::int64_t done = 0;
  for (int stop = 0; stop < stops; ++stop) {
    const int signal = std::array{SIGTERM, SIGINT, SIGUSR1}[random() % 3];
    const std::string line = phase(random, done);
    SCOPED_TRACE("stop " + std::to_string(stop) + " by " + std::to_string(signal) + " behind '" + line + "'");
    Process asked({.command = job(2, program("stopped", backend, steps))});
    ASSERT_TRUE(asked.await_output(line));
    if (random() % 2 == 0) {
      asked.send(signal);
    } else {
      const auto pids = numbers_in(asked.err(), "pid ([0-9]+)\n");
      ASSERT_EQ(pids.size(), 2u) << asked.err();
      ASSERT_EQ(::kill(static_cast<pid_t>(pids[random() % 2]), signal), 0);
    }
    const Result result = asked.wait();
    ASSERT_FALSE(has_ended("stopped")) << "it had ended before it was asked";
    ASSERT_EQ(result.exit_code, kExitRequeue) << result.err;
    // The launcher, the ranks and the folder say one number.
    const auto said = numbers_in(result.err, "stopped after ([0-9]+) steps?: rank [01] got SIG");
    ASSERT_EQ(said.size(), 1u) << result.err;
    EXPECT_EQ(numbers_in(result.err, "stopping after ([0-9]+) steps?: rank [01] got SIG"), said) << result.err;
    ASSERT_EQ(steps_in("stopped").front(), said.front()) << result.err;
    EXPECT_GE(said.front(), done) << "in an evaluation no step is done";
    done = said.front();
  }
  const Result last = testing::run(job(2, program("stopped", backend, steps)));
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_EQ(bytes_of("stopped"), whole);
}

TEST_F(SnapshotJob, OfWhichAllRanksAreKilledAtOnceGoesOn) {
  const std::string whole = undisturbed(3);
  {
    Process job_process({.command = job(3, program("killed"))});
    ASSERT_TRUE(job_process.await_output("is saved in", 2));
    for (const auto pid : numbers_in(job_process.err(), "pid ([0-9]+)\n")) {
      ASSERT_EQ(::kill(static_cast<pid_t>(pid), SIGKILL), 0);
    }
    EXPECT_EQ(job_process.wait().exit_code, 128 + SIGKILL);
  }
  ASSERT_FALSE(has_ended("killed"));
  const Result again = testing::run(job(3, program("killed")));
  ASSERT_EQ(again.exit_code, 0) << again.err;
  ASSERT_EQ(numbers_in(again.err, "goes on from step ([0-9]+)").size(), 1u) << again.err;
  EXPECT_EQ(bytes_of("killed"), whole);
}

// What a process of its own terminal writes until it ends.
struct Terminal {
  explicit Terminal(const Words& command) {
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    child = ::forkpty(&fd, nullptr, nullptr, nullptr);
    if (child == 0) {
      ::execv(words.front(), words.data());
      ::_exit(127);
    }
  }
  // Until there is `wanted`, or the end of all output; false at a deadline.
  bool read_until(const std::string& wanted) {
    const auto deadline = Deadline::after(testing::kPatience);
    char bytes[4096];
    while (wanted.empty() || text.find(wanted) == std::string::npos) {
      pollfd ready{fd, POLLIN, 0};
      if (::poll(&ready, 1, deadline.poll_timeout_ms()) <= 0) return false;
      const ssize_t got = ::read(fd, bytes, sizeof bytes);
      if (got <= 0) return wanted.empty();  // EIO: the last of its processes has gone
      text.append(bytes, static_cast<std::size_t>(got));
    }
    return true;
  }
  int wait() {
    int status = 0;
    ::waitpid(child, &status, 0);
    ::close(fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int fd = -1;
  pid_t child = -1;
  std::string text;
};

TEST_F(SnapshotJob, InATerminalIsStoppedByCtrlC) {
  const std::string whole = undisturbed(2);
  Terminal terminal(job(2, program("typed")));
  ASSERT_GT(terminal.child, 0);
  ASSERT_TRUE(terminal.read_until("is saved in")) << terminal.text;
  ASSERT_EQ(::write(terminal.fd, "\x03", 1), 1);
  ASSERT_TRUE(terminal.read_until("")) << terminal.text;
  EXPECT_EQ(terminal.wait(), kExitRequeue) << terminal.text;
  EXPECT_TRUE(contains(terminal.text, "SIGINT: passed on to 2 ranks")) << terminal.text;
  const auto said = numbers_in(terminal.text, "stopped after ([0-9]+) steps: rank [01] got SIGINT");
  ASSERT_EQ(said.size(), 1u) << terminal.text;
  EXPECT_EQ(steps_in("typed").front(), said.front());
  ASSERT_FALSE(has_ended("typed"));
  const Result again = testing::run(job(2, program("typed")));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(bytes_of("typed"), whole);
}

// As `#SBATCH --signal=B:USR1@120` has it: the batch script alone gets the signal, and passes it on.
TEST_F(SnapshotJob, InABatchScriptThatGetsUsr1IsToBeQueuedAgain) {
  const std::string whole = undisturbed(2);
  const Words script = joined({"sh", "-c",
                               "trap 'kill -USR1 $job' USR1; \"$@\" & job=$!; wait $job; code=$?; "
                               "while kill -0 $job 2>/dev/null; do wait $job; code=$?; done; "
                               "test $code -eq 75 && echo requeue; exit $code",
                               "sh"},
                              job(2, program("queued")));
  Process batch({.command = script});
  ASSERT_TRUE(batch.await_output("is saved in"));
  batch.send(SIGUSR1);
  const Result result = batch.wait();
  EXPECT_TRUE(contains(result.out, "requeue")) << result.out << result.err;
  EXPECT_TRUE(contains(result.err, "got SIGUSR1; exit code 75")) << result.err;
  ASSERT_FALSE(has_ended("queued"));
  EXPECT_EQ(testing::run(job(2, program("queued"))).exit_code, 0);
  EXPECT_EQ(bytes_of("queued"), whole);
}

// A pipe for the stderr of ranks, that is full and that nobody reads: as mpirun's while it ends a job, or a launcher's
// whose terminal is paused.
class UnreadStderr {
 public:
  explicit UnreadStderr(std::string path) : path_(std::move(path)) {
    if (::mkfifo(path_.c_str(), 0600) != 0) throw SystemError("mkfifo " + path_, errno);
    fd_.reset(::open(path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  }
  Words of(const Words& program) const { return joined({"sh", "-c", "exec \"$@\" 2>'" + path_ + "'", "sh"}, program); }
  // From now on whoever writes to it as usual waits.
  void fill() const {
    const std::string bytes(4096, '.');
    for (const std::size_t count : {bytes.size(), std::size_t{1}}) {
      while (::write(fd_.get(), bytes.data(), count) > 0) {
      }
      ASSERT_EQ(errno, EAGAIN);
    }
  }

 private:
  std::string path_;
  UniqueFd fd_;
};

TEST_F(SnapshotJob, WhoseStderrNobodyReadsStopsAndSaves) {
  const std::string whole = undisturbed(2);
  const UnreadStderr unread(file("stderr"));
  testing::RankProcesses ranks(2, {.command = unread.of(program("unread"))});
  ASSERT_TRUE(ranks[0].await_output("at 30\n"));  // and a snapshot is saved, which a line says
  unread.fill();
  ASSERT_TRUE(ranks[0].await_output("at 100\n"));
  ranks.kill(1, SIGTERM);
  for (const Result& result : ranks.wait()) EXPECT_EQ(result.exit_code, kExitRequeue);
  ASSERT_FALSE(has_ended("unread"));
  const auto listed = testing::run({LOCKSTEP_PROGRAM, "snapshots", file("unread")});
  EXPECT_TRUE(contains(listed.out, "rank 1 got SIGTERM")) << listed.out;
  EXPECT_EQ(testing::run(job(2, program("unread"))).exit_code, 0);
  EXPECT_EQ(bytes_of("unread"), whole);
}

TEST_F(SnapshotJob, WhoseStderrNobodyReadsSavesTheLastStepWhenARankDies) {
  const std::string whole = undisturbed(2);
  const UnreadStderr unread(file("stderr"));
  testing::RankProcesses ranks(2, {.command = unread.of(program("unread"))});
  ASSERT_TRUE(ranks[0].await_output("at 30\n"));
  unread.fill();
  ASSERT_TRUE(ranks[0].await_output("at 100\n"));
  ranks.kill(0, SIGKILL);
  EXPECT_EQ(ranks.wait().back().exit_code, kExitPeerLost);
  const auto listed = testing::run({LOCKSTEP_PROGRAM, "snapshots", file("unread")});
  EXPECT_TRUE(contains(listed.out, "the job has failed")) << listed.out;
  EXPECT_EQ(testing::run(job(2, program("unread"))).exit_code, 0);
  EXPECT_EQ(bytes_of("unread"), whole);
}

TEST_F(SnapshotJob, UnderMpirunIsStoppedByItsSigtermAndSaves) {
  LOCKSTEP_NEEDS_MPIRUN();
  constexpr int kLong = 50000;  // it takes its time to pass a signal on
  // It waits that long before it signals the ranks, and again before it kills them.
  const Words mpirun{"mpirun", "--mca", "odls_base_sigkill_timeout", "1", "-n", "2"};
  const testing::Variables variables = mpi_variables();
  const Result alone = testing::run(joined(mpirun, program("undisturbed", "", kLong)), variables);
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  Process asked({.command = joined(mpirun, program("stopped", "", kLong)), .environment = variables});
  ASSERT_TRUE(asked.await_output("is saved in"));
  asked.send(SIGTERM);
  const Result result = asked.wait();
  EXPECT_NE(result.exit_code, 0);  // mpirun's own, whatever the ranks return
  // It shows nothing more of what the ranks say: the snapshot does.
  const auto listed = testing::run({LOCKSTEP_PROGRAM, "snapshots", file("stopped")});
  EXPECT_TRUE(contains(listed.out, "got SIGTERM")) << listed.out << result.err;
  ASSERT_FALSE(has_ended("stopped"));
  const Result again = testing::run(joined(mpirun, program("stopped", "", kLong)), variables);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(bytes_of("stopped"), bytes_of("undisturbed"));
}

}  // namespace
}  // namespace lockstep::e2e
