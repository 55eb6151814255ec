// SPDX-License-Identifier: Apache-2.0
// `lockstep run --max-restarts`: jobs of real processes that fail and are started again.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/base/procfs.h"
#include "runtime/base/unique_fd.h"
#include "tests/e2e/training_job.h"
#include "tests/support/leftovers.h"
#include "tests/support/wait_until.h"

namespace lockstep::e2e::restart_test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::wait_until;

class RestartedJob : public TrainingJob {
 protected:
  static Words restarts(int most) { return {"--max-restarts", std::to_string(most)}; }
  // The ranks of the start that is under way: the last ones that said their pids.
  static std::vector<pid_t> pids(const Process& job, std::size_t ranks) {
    const auto all = numbers_in(job.err(), "pid ([0-9]+)\n");
    std::vector<pid_t> last;
    for (std::size_t i = all.size() - ranks; i < all.size(); ++i) last.push_back(static_cast<pid_t>(all[i]));
    return last;
  }
};

TEST_F(RestartedJob, WhoseRanksAreKilledOneByOneGoesOnAndEndsWithTheBitsOfAnUndisturbedRun) {
  const std::string whole = undisturbed(2);
  const Words counting{"sh", "-c", "echo start $LOCKSTEP_RESTART_COUNT; exec \"$@\"", "sh"};
  Process running({.command = job(2, joined(counting, program("killed")), restarts(5))});
  for (const int step : {400, 900, 1500}) {
    ASSERT_TRUE(running.await_output("at " + std::to_string(step) + "\n"));
    const auto ranks = pids(running, 2);
    ASSERT_EQ(::kill(ranks[static_cast<std::size_t>(step / 100 % 2)], SIGKILL), 0);
  }
  const Result result = running.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(bytes_of("killed"), whole);
  EXPECT_EQ(numbers_in(result.err, "restart ([0-9]+) of 5 \\(--max-restarts\\); [0-9]+ steps done\n"),
            (std::vector<std::int64_t>{1, 2, 3}))
      << result.err;
  // Of a dead rank nothing that was finished is done again: the survivor has saved it.
  const auto reached = numbers_in(result.err, "; ([0-9]+) steps done\n");
  const auto gone_on = numbers_in(result.err, "resumes from step ([0-9]+)");
  ASSERT_EQ(gone_on.size(), 3u) << result.err;
  for (std::size_t i = 0; i < 3; ++i) EXPECT_GE(gone_on[i], reached[i]) << result.err;
  EXPECT_EQ(numbers_in(result.out, "start ([0-9]+)\n"), (std::vector<std::int64_t>{0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_TRUE(testing::live_ranks().empty());
}

TEST_F(RestartedJob, OfWhichAllRanksAreKilledAtOnceGoesOnFromItsLastSnapshot) {
  // Long enough for heartbeats, which say what is done: nobody is left to say it.
  constexpr int kLong = 16000;
  const std::string whole = undisturbed(2, "", kLong);
  Process running({.command = job(2, program("killed", "", kLong), restarts(1))});
  ASSERT_TRUE(running.await_output("at 10000\n"));
  for (const pid_t pid : pids(running, 2)) ASSERT_EQ(::kill(pid, SIGKILL), 0);
  const Result result = running.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(bytes_of("killed"), whole);
}

// No heartbeat has spoken of that step yet, and nobody is left to speak of it. One rank alone sends none.
TEST_F(RestartedJob, OfWhichAllRanksAreKilledAsSoonAsTheyAreAStepFurtherIsStartedAgainAtOnce) {
  for (const int ranks : {1, 2}) {
    const Result result = testing::run(job(ranks, program("killed" + std::to_string(ranks), "", 100), restarts(5)),
                                       {{"LOCKSTEP_TEST_KILLED_STARTS", "5"}, {"LOCKSTEP_TEST_KILLED_FURTHER", "1"}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    for (const char* done : {"1 step", "2 steps", "3 steps", "4 steps", "5 steps"}) {
      EXPECT_THAT(result.err, HasSubstr("(--max-restarts); " + std::string(done) + " done\n"));
    }
  }
}

TEST_F(RestartedJob, IsEndedByASignalBetweenTwoStarts) {
  Process running({.command = job(2, program("stuck"), joined({"--log-dir", file("log")}, restarts(100))),
                   .environment = {{"LOCKSTEP_TEST_FAIL_AT", "137"}}});
  ASSERT_TRUE(running.await_output("steps done; in 2 s\n"));
  running.send(SIGTERM);
  const Result result = running.wait();
  EXPECT_EQ(result.exit_code, 75);
  EXPECT_THAT(result.err, HasSubstr("stopped by SIGTERM between two starts; exit code 75"));
  for (const auto& path : {file("log/verdict.json"), file("log/start3/verdict.json")}) {
    std::ifstream in(path);
    const auto verdict = nlohmann::json::parse(in, nullptr, false);
    ASSERT_TRUE(verdict.is_object()) << path;
    EXPECT_EQ(verdict["starts_again"], false);
    EXPECT_EQ(verdict["exit_code"], 75);
    EXPECT_EQ(verdict["start"], 3);
    EXPECT_THAT(verdict["summary"], EndsWith("; stopped by SIGTERM between two starts; exit code 75"));
  }
}

// Between the verdict and the next start the launcher waits for whoever reads its output.
TEST_F(RestartedJob, IsEndedByASignalThatFindsNoRankAnyMore) {
  const std::string fifo = file("reader");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  Process running({.command = joined({"sh", "-c", "exec \"$@\" >\"$0\"", fifo},
                                     run_command(joined({"-n", "1", "--tee", "--log-dir", file("log")}, restarts(5)),
                                                 RANK_PROGRAM, {"init", "train:5", "flood:9000", "exit:3"}))});
  const UniqueFd reader(open(fifo.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(reader);
  ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(file("log/verdict.json")); }));
  std::filesystem::remove(file("log/start1/verdict.json"));  // which the stop would correct
  running.send(SIGTERM);
  const Result result = running.wait();
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_THAT(result.err, HasSubstr("stopped by SIGTERM between two starts; exit code 75"));
}

TEST_F(RestartedJob, ThatIsAskedToStopIsNotStartedAgain) {
  Process running({.command = job(2, program("asked"), restarts(5))});
  ASSERT_TRUE(running.await_output("at 100\n"));
  running.send(SIGTERM);
  const Result result = running.wait();
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("restart ")));
  EXPECT_THAT(result.err, EndsWith(" is saved: run the same command to resume\n"));
}

TEST_F(RestartedJob, StartsNoRankOnAHostThatIsNotHealthy) {
  const Result sick =
      testing::run(plain(1, {"print:started"}, {"--health-check", "echo the fan stands still >&2; exit 3"}));
  EXPECT_EQ(sick.exit_code, 2);
  EXPECT_EQ(sick.out, "");
  EXPECT_THAT(sick.err, AllOf(HasSubstr("--health-check `echo the fan stands still >&2; exit 3` exited with code 3"),
                              HasSubstr("it said: the fan stands still")));
  const std::string mark = file("sick");
  Process running({.command = job(2, program("killed"), joined(restarts(3), {"--health-check", "test ! -e " + mark}))});
  ASSERT_TRUE(running.await_output("at 200\n"));
  std::ofstream(mark) << "x";
  ASSERT_EQ(::kill(pids(running, 2)[1], SIGKILL), 0);
  const Result result = running.wait();
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("--health-check `test ! -e " + mark + "` exited with code 1: no rank is started here"));
}

TEST_F(RestartedJob, WhoseLauncherIsKilledLeavesNothingThatTheHealthCheckHasStarted) {
  const std::string mark = file("child");
  Process running({.command = plain(1, {"print:started"},
                                    {"--health-check", "sleep 3600 & echo $! >" + mark + ".new; mv " + mark + ".new " +
                                                           mark + "; wait"})});
  ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(mark); }));
  pid_t child = 0;
  std::ifstream(mark) >> child;
  running.send(SIGKILL);
  EXPECT_EQ(running.wait().signal, SIGKILL);
  EXPECT_TRUE(wait_until([&] {
    const auto entry = process_entry(child);
    return !entry || !entry->alive();
  }));
}

}  // namespace
}  // namespace lockstep::e2e::restart_test
