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
#include <cstring>
#include <filesystem>
#include <ostream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "runtime/job/exit_code.h"
#include "tests/e2e/launch.h"
#include "tests/e2e/mpi.h"
#include "tests/e2e/training_job.h"
#include "tests/support/rank_processes.h"
#include "tests/support/sanitized.h"

namespace lockstep::e2e::snapshot_jobs_test {
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

// A line behind which the next signal comes: of the loop of training, of a snapshot in the background, of an
// evaluation.
std::string phase(std::mt19937& random, std::int64_t done) {
  switch (random() % 3) {
    case 0: return "at " + std::to_string(10 * (done / 10 + 1 + static_cast<std::int64_t>(random() % 4))) + "\n";
    case 1: return "evaluating ";
    default: return "is saved in";
  }
}

// What a process of its own terminal writes until it ends.
struct Terminal {
  explicit Terminal(const Words& command) {
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    child = ::forkpty(&fd, nullptr, nullptr, nullptr);
    if (child == 0) {
      ::setenv("TERM", "xterm", 1);
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
      std::erase(text, '\r');
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

// Who gets the signal: `lockstep run` or one of its ranks; the script of a batch job alone, as
// `#SBATCH --signal=B:USR1@120` has it, which passes it on; the first process of a pod, which is a rank here; `lockstep
// run` by Ctrl-C in its terminal.
enum class Way { launcher, rank, batch_script, pod, terminal };
constexpr std::array kWays{Way::launcher, Way::rank, Way::batch_script, Way::pod, Way::terminal};

// A job that has stopped: what it said, and its exit code.
struct Stopped {
  int exit_code = -1;
  std::string text;
};

Stopped stop_process(const Words& command, const std::string& line, int signal, int rank = -1) {
  Process asked({.command = command});
  EXPECT_TRUE(asked.await_output(line));
  if (rank < 0) {
    asked.send(signal);
  } else {
    const std::string text = asked.err(), mark = "[rank " + std::to_string(rank) + "] pid ";
    const auto at = text.find(mark);
    EXPECT_NE(at, text.npos) << text;
    if (at != text.npos) {
      EXPECT_EQ(::kill(std::stoi(text.substr(at + mark.size())), signal), 0);
    }
  }
  const Result result = asked.wait();
  return {result.exit_code, result.out + result.err};
}

Stopped stop_batch_script(const Words& job, const std::string& line) {
  const Words script{"sh", "-c",
                     "trap 'kill -USR1 $job' USR1; \"$@\" & job=$!; wait $job; code=$?; "
                     "while kill -0 $job 2>/dev/null; do wait $job; code=$?; done; "
                     "test $code -eq 75 && echo requeue; exit $code",
                     "sh"};
  const Stopped stopped = stop_process(joined(script, job), line, SIGUSR1);
  EXPECT_TRUE(contains(stopped.text, "requeue")) << stopped.text;
  EXPECT_TRUE(contains(stopped.text, "got SIGUSR1; exit code 75")) << stopped.text;
  return stopped;
}

Stopped stop_pod(const Words& program, const std::string& line, int rank) {
  testing::RankProcesses pods(2, {.command = program});
  EXPECT_TRUE(pods[0].await_output(line));
  pods.kill(rank, SIGTERM);
  const auto results = pods.wait();
  EXPECT_EQ(results[1].exit_code, results[0].exit_code) << results[1].err;
  return {results[0].exit_code, results[0].out + results[0].err};
}

Stopped stop_in_terminal(const Words& job, const std::string& line) {
  Terminal terminal(joined({"/usr/bin/env", "LOCKSTEP_LIVENESS=off"}, job));  // as Process has it
  EXPECT_GT(terminal.child, 0);
  EXPECT_TRUE(terminal.read_until(line)) << terminal.text;
  EXPECT_EQ(::write(terminal.fd, "\x03", 1), 1);
  EXPECT_TRUE(terminal.read_until("")) << terminal.text;
  EXPECT_TRUE(contains(terminal.text, "SIGINT: passed on to 2 ranks")) << terminal.text;
  return {terminal.wait(), terminal.text};
}

// By backend.
class SnapshotJobOn : public SnapshotJob, public ::testing::WithParamInterface<std::string> {
 protected:
  // Starts the job once more, and stops it in this way behind `line`. Returns how many steps it says were done then.
  std::int64_t stop(Way way, const std::string& line, int steps, std::mt19937& random) {
    const Words alone = program("stopped", GetParam(), steps);
    const Words launched = job(2, alone);
    const int rank = static_cast<int>(random() % 2);
    int signal = std::array{SIGTERM, SIGINT, SIGUSR1}[random() % 3];
    if (way == Way::batch_script) signal = SIGUSR1;
    if (way == Way::pod) signal = SIGTERM;
    if (way == Way::terminal) signal = SIGINT;
    Stopped stopped;
    switch (way) {
      case Way::launcher: stopped = stop_process(launched, line, signal); break;
      case Way::rank: stopped = stop_process(launched, line, signal, rank); break;
      case Way::batch_script: stopped = stop_batch_script(launched, line); break;
      case Way::pod: stopped = stop_pod(alone, line, rank); break;
      case Way::terminal: stopped = stop_in_terminal(launched, line); break;
    }
    EXPECT_FALSE(has_ended("stopped")) << "it had ended before it was asked";
    EXPECT_EQ(stopped.exit_code, kExitRequeue) << stopped.text;
    // The ranks, their launcher and the folder say one number.
    const std::string what = std::string(" after ([0-9]+) steps?: rank [01] got SIG") + ::sigabbrev_np(signal);
    const auto said = numbers_in(stopped.text, "stopping" + what);
    EXPECT_EQ(said.size(), 1u) << stopped.text;
    if (said.size() != 1) return -1;
    EXPECT_EQ(numbers_in(stopped.text, "stopped" + what), way == Way::pod ? std::vector<std::int64_t>{} : said)
        << stopped.text;
    EXPECT_EQ(steps_in("stopped").front(), said.front()) << stopped.text;
    return said.front();
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, SnapshotJobOn, ::testing::Values("shm", "tcp"),
                         [](const auto& of) { return of.param; });

// LOCKSTEP_TEST_STOPS: how many, 30 in the night; else one in each way.
TEST_P(SnapshotJobOn, StoppedAgainAndAgainInAnyPhaseEndsWithTheSameBits) {
  const char* const wanted = std::getenv("LOCKSTEP_TEST_STOPS");
  const int stops = wanted == nullptr ? static_cast<int>(kWays.size()) : std::atoi(wanted);
  ASSERT_GT(stops, 0);
  const int steps = kSteps + 200 * stops;
  const std::string whole = undisturbed(2, GetParam(), steps);
  std::mt19937 random(17);
  std::int64_t done = 0;
  for (int number = 0; number < stops; ++number) {
    const std::string line = phase(random, done);
    const std::size_t way = static_cast<std::size_t>(number) % kWays.size();
    SCOPED_TRACE("stop " + std::to_string(number) + " in way " + std::to_string(way) + " behind '" + line + "'");
    const std::int64_t after = stop(kWays[way], line, steps, random);
    EXPECT_GE(after, done);  // in an evaluation none is done
    if (HasFailure()) return;
    done = after;
  }
  const Result last = run_to_end(job(2, program("stopped", GetParam(), steps)), steps);
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
  const Result again = run_to_end(job(3, program("killed")));
  ASSERT_EQ(again.exit_code, 0) << again.err;
  ASSERT_EQ(numbers_in(again.err, "resumes from step ([0-9]+)").size(), 1u) << again.err;
  EXPECT_EQ(bytes_of("killed"), whole);
}

// A network of LibTorch's, by its name in the program.
class LibtorchSnapshotJob : public SnapshotJob, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    if (!std::string_view(WHY_NO_LIBTORCH).empty()) GTEST_SKIP() << WHY_NO_LIBTORCH;
  }
  Words network(const std::string& name) const {
    return {LIBTORCH_PROGRAM, file(name), file(name + ".weights"), std::to_string(kNetworkSteps), GetParam()};
  }
  static constexpr int kNetworkSteps = 2000;
};
INSTANTIATE_TEST_SUITE_P(Networks, LibtorchSnapshotJob, ::testing::Values("cnn", "lstm"),
                         [](const auto& of) { return of.param; });

TEST_P(LibtorchSnapshotJob, StoppedAndKilledAtRandomStepsEndsWithTheSameBits) {
  const Result alone = run_to_end(job(2, network("undisturbed")));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  enum class Harm { stop, kill_one, kill_all };
  std::array harms{Harm::stop, Harm::kill_one, Harm::kill_all};
  std::mt19937 random(29);
  std::shuffle(harms.begin(), harms.end(), random);
  std::int64_t done = 0;
  for (const Harm harm : harms) {
    const std::int64_t at = 10 * (done / 10 + 6 + static_cast<std::int64_t>(random() % 15));
    SCOPED_TRACE("harm " + std::to_string(static_cast<int>(harm)) + " at step " + std::to_string(at));
    Process harmed({.command = job(2, network("harmed"))});
    ASSERT_TRUE(harmed.await_output("is saved in"));
    ASSERT_TRUE(harmed.await_output("at " + std::to_string(at) + "\n"));
    // Between a step and the next forward running statistics are rank 0's alone, and die with it (docs/SNAPSHOTS.md).
    const bool spare_first = harm == Harm::kill_one && GetParam() == std::string("cnn");
    const std::int64_t who = spare_first ? 1 : static_cast<std::int64_t>(random() % 2);
    const auto kill_rank = [&](std::int64_t rank, int signal) {
      const auto pids = numbers_in(harmed.err(), "\\[rank " + std::to_string(rank) + "\\] pid ([0-9]+)\n");
      ASSERT_EQ(pids.size(), 1u) << harmed.err();
      ::kill(static_cast<pid_t>(pids.front()), signal);
    };
    kill_rank(who, harm == Harm::stop ? SIGTERM : SIGKILL);
    if (harm == Harm::kill_all) kill_rank(1 - who, SIGKILL);  // perhaps it has ended by itself
    const Result result = harmed.wait();
    EXPECT_EQ(result.exit_code, harm == Harm::stop ? kExitRequeue : 128 + SIGKILL) << result.err;
    ASSERT_FALSE(has_ended("harmed")) << "it had ended before";
    done = steps_in("harmed").front();
    // A stop and a survivor save the last step that was done; of all killed at once the last snapshot is left.
    if (harm != Harm::kill_all) {
      EXPECT_GE(done, at) << result.err;
    }
  }
  const Result last = run_to_end(job(2, network("harmed")));
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_EQ(bytes_of("harmed"), bytes_of("undisturbed"));
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
  EXPECT_EQ(run_to_end(job(2, program("unread"))).exit_code, 0);
  EXPECT_EQ(bytes_of("unread"), whole);
}

TEST_F(SnapshotJob, WhoseStderrNobodyReadsSavesTheLastStepWhenARankDies) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer reports on stderr at the end, and waits until somebody reads";
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
  EXPECT_EQ(run_to_end(job(2, program("unread"))).exit_code, 0);
  EXPECT_EQ(bytes_of("unread"), whole);
}

TEST_F(SnapshotJob, UnderMpirunIsStoppedByItsSigtermAndSaves) {
  LOCKSTEP_NEEDS_MPIRUN();
  if (testing::kSanitized) GTEST_SKIP() << "50,000 steps take minutes under a sanitizer";
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
}  // namespace lockstep::e2e::snapshot_jobs_test
