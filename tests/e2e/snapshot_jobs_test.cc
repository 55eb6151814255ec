// SPDX-License-Identifier: Apache-2.0
// Jobs of real processes with snapshots, stopped or killed at any moment: the end has the bits of an undisturbed run.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "runtime/job/exit_code.h"
#include "tests/e2e/launch.h"
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
  static void signal_rank(const Process& launcher, std::int64_t rank, int signal) {
    const auto pids = numbers_in(launcher.err(), "\\[rank " + std::to_string(rank) + "\\] pid ([0-9]+)\n");
    ASSERT_EQ(pids.size(), 1u) << launcher.err();
    ::kill(static_cast<pid_t>(pids.front()), signal);
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

// By backend.
class SnapshotJobOn : public SnapshotJob, public ::testing::WithParamInterface<std::string> {
 protected:
  // Starts the job once more, and behind `line` a signal comes to `lockstep run` or to one of its ranks. Returns how
  // many steps it says were done then.
  std::int64_t stop(bool is_rank, const std::string& line, int steps, std::mt19937& random) {
    const int signal = std::array{SIGTERM, SIGINT, SIGUSR1}[random() % 3];
    Process asked({.command = job(2, program("stopped", GetParam(), steps))});
    EXPECT_TRUE(asked.await_output(line));
    is_rank ? signal_rank(asked, static_cast<std::int64_t>(random() % 2), signal) : asked.send(signal);
    const Result result = asked.wait();
    EXPECT_FALSE(has_ended("stopped")) << "it had ended before it was asked";
    EXPECT_EQ(result.exit_code, kExitRequeue) << result.err;
    // The ranks, their launcher and the folder say one number.
    const std::string what = std::string(" after ([0-9]+) steps?: rank [01] got SIG") + ::sigabbrev_np(signal);
    const auto said = numbers_in(result.err, "stopping" + what);
    EXPECT_EQ(said.size(), 1u) << result.err;
    if (said.size() != 1) return -1;
    EXPECT_EQ(numbers_in(result.err, "stopped" + what), said) << result.err;
    EXPECT_EQ(steps_in("stopped").front(), said.front()) << result.err;
    return said.front();
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, SnapshotJobOn, ::testing::Values("shm", "tcp"),
                         [](const auto& of) { return of.param; });

// LOCKSTEP_TEST_STOPS: how many, 30 in the night.
TEST_P(SnapshotJobOn, StoppedAgainAndAgainInAnyPhaseEndsWithTheSameBits) {
  const char* const wanted = std::getenv("LOCKSTEP_TEST_STOPS");
  const int stops = wanted == nullptr ? 4 : std::atoi(wanted);
  ASSERT_GT(stops, 0);
  const int steps = kSteps + 200 * stops;
  const std::string whole = undisturbed(2, GetParam(), steps);
  std::mt19937 random(17);
  std::int64_t done = 0;
  for (int number = 0; number < stops; ++number) {
    const std::string line = phase(random, done);
    SCOPED_TRACE("stop " + std::to_string(number) + " behind '" + line + "'");
    const std::int64_t after = stop(number % 2 == 1, line, steps, random);
    EXPECT_GE(after, done);  // in an evaluation none is done
    if (HasFailure()) return;
    done = after;
  }
  const Result last = run_to_end(job(2, program("stopped", GetParam(), steps)), steps);
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_EQ(bytes_of("stopped"), whole);
}

TEST_F(SnapshotJob, OfLibtorchStoppedAndKilledAtRandomStepsEndsWithTheSameBits) {
  if (!std::string_view(WHY_NO_LIBTORCH).empty()) GTEST_SKIP() << WHY_NO_LIBTORCH;
  const auto network = [&](const std::string& name) {
    return Words{LIBTORCH_PROGRAM, file(name), file(name + ".weights"), "2000"};
  };
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
    const std::int64_t who = harm == Harm::kill_one ? 1 : static_cast<std::int64_t>(random() % 2);
    signal_rank(harmed, who, harm == Harm::stop ? SIGTERM : SIGKILL);
    if (harm == Harm::kill_all) signal_rank(harmed, 1 - who, SIGKILL);  // perhaps it has ended by itself
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

TEST_F(SnapshotJob, WhoseStderrNobodyReadsSavesTheLastStepAtAStopAndWhenARankDies) {
  const std::string whole = undisturbed(2);
  for (const int signal : {SIGTERM, SIGKILL}) {
    // A sanitizer reports on stderr at the end, and waits until somebody reads.
    if (testing::kSanitized && signal == SIGKILL) continue;
    const std::string name = "unread" + std::to_string(signal);
    const UnreadStderr unread(file(name + ".stderr"));
    testing::RankProcesses ranks(2, {.command = unread.of(program(name))});
    ASSERT_TRUE(ranks[0].await_output("at 30\n"));  // and a snapshot is saved, which a line says
    unread.fill();
    ASSERT_TRUE(ranks[0].await_output("at 100\n"));
    ranks.kill(0, signal);
    EXPECT_EQ(ranks.wait().back().exit_code, signal == SIGTERM ? kExitRequeue : kExitPeerLost);
    ASSERT_FALSE(has_ended(name));
    const auto listed = testing::run({LOCKSTEP_PROGRAM, "snapshots", file(name)});
    EXPECT_TRUE(contains(listed.out, signal == SIGTERM ? "rank 0 got SIGTERM" : "the job has failed")) << listed.out;
    EXPECT_EQ(run_to_end(job(2, program(name))).exit_code, 0);
    EXPECT_EQ(bytes_of(name), whole);
  }
}

}  // namespace
}  // namespace lockstep::e2e::snapshot_jobs_test
