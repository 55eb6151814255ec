// SPDX-License-Identifier: Apache-2.0
// `lockstep ps`, `logs` and `stop`, from another terminal.
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>

#include "tests/e2e/job.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::e2e::runs_test {
namespace {

using lockstep::testing::expect_text;

using nlohmann::json;
using testing::run;
using testing::wait_until;

// What ps says of the launcher; nothing if it says nothing. `answers`: other launchers on this host count only if they
// do.
std::optional<json> shown(const Process& launcher) {
  for (const json& one : json::parse(run({LOCKSTEP_PROGRAM, "ps", "--json"}).out)) {
    if (one["pid"] == launcher.pid()) return one;
  }
  return std::nullopt;
}

TEST(Runs, AreShownWhileTheyRun) {
  const testing::TemporaryFolder folder;
  Process launcher(
      {.command = plain(2, {"env:LOCKSTEP_RUN_ID", "ready", "hang"}, {"--log-dir", folder.native(), "--tee"})});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  const auto one = shown(launcher);
  ASSERT_TRUE(one);
  expect_text(launcher.out(), {"LOCKSTEP_RUN_ID=" + (*one)["run_id"].get<std::string>() + "\n"});
  EXPECT_EQ((*one)["answers"], true);
  EXPECT_EQ((*one)["ranks"], 2);
  EXPECT_EQ((*one)["world_size"], 2);
  EXPECT_EQ((*one)["hosts"], 1);
  EXPECT_EQ((*one)["log_dir"], folder.native());
  EXPECT_TRUE((*one)["step"].is_null()) << "no rank has said";
  EXPECT_GE((*one)["age_s"].get<double>(), 0);
  expect_text((*one)["command"].get<std::string>(), {PLAIN_PROGRAM, " ready hang"});
  const auto table = run({LOCKSTEP_PROGRAM, "ps"});
  EXPECT_EQ(table.exit_code, 0);
  expect_text(table.out, {"RUN ", (*one)["run_id"].get<std::string>(), "0-1 of 2", folder.native()});
  launcher.send(SIGTERM);
  launcher.wait();
  EXPECT_FALSE(shown(launcher));
}

TEST(Runs, SayWhichStepTheyAreIn) {
  Process launcher({.command = run_command({"-n", "2"}, RANK_PROGRAM, {"init", "train"})});
  // Heartbeats carry it.
  EXPECT_TRUE(wait_until([&] {
    const auto one = shown(launcher);
    return one && (*one)["step"].is_number() && (*one)["step"] >= 0;
  }));
  launcher.send(SIGKILL);
}

TEST(Runs, ShowTheirLastLinesAndAreFollowedToTheEnd) {
  Process launcher({.command = plain(2, {"print:one", "print:two", "ready", "wait-signal:10", "print:three"})});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  const std::string id = id_of(launcher);
  const auto last = run({LOCKSTEP_PROGRAM, "logs", id});
  EXPECT_EQ(last.exit_code, 0) << last.err;
  expect_text(last.out, {"Z rank0.out: one\n", "Z rank1.out: two\n"});
  EXPECT_EQ(lines_of(run({LOCKSTEP_PROGRAM, "logs", "-n", "2", id}).out).size(), 2u);
  EXPECT_EQ(run({LOCKSTEP_PROGRAM, "logs", "-n", "0", id}).out, "");
  Process follower({.command = {LOCKSTEP_PROGRAM, "logs", "-n", "1", "--follow", id}});
  ASSERT_TRUE(follower.await_output("ready\n"));
  launcher.send(SIGUSR1);
  EXPECT_EQ(launcher.wait().exit_code, 0);
  const auto followed = follower.wait();
  EXPECT_EQ(followed.exit_code, 0) << followed.err;
  expect_text(followed.out, {"Z rank0.out: three\n", "Z rank1.out: three\n"});
  EXPECT_FALSE(contains(followed.out, "one\n"));
}

TEST(Runs, AreStoppedAndTheSecondTimeKilled) {
  Process launcher({.command = plain(2, {"catch:15", "ready", "hang"})});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  const std::string id = id_of(launcher);
  EXPECT_EQ(run({LOCKSTEP_PROGRAM, "stop", id}).out,
            id + ": asked to stop; the ranks may take time to save; run lockstep stop again to kill the ranks\n");
  ASSERT_TRUE(launcher.await_output("caught 15", 2));
  // What comes within a moment is still the first request.
  EXPECT_TRUE(wait_until([&] {
    run({LOCKSTEP_PROGRAM, "stop", id});
    return !launcher.running();
  }));
  EXPECT_EQ(launcher.wait().exit_code, 128 + SIGTERM);
  expect_text(launcher.err(), {"SIGTERM: passed on to 2 ranks", "second SIGTERM: killing 2 ranks"});
}

TEST(Runs, ALauncherThatIsStoppedIsNamedAndNotWaitedFor) {
  Process launcher({.command = plain(1, {"ready", "hang"})});
  ASSERT_TRUE(launcher.await_output("ready"));
  const std::string id = id_of(launcher);
  const std::string silent = id + " (pid " + std::to_string(launcher.pid()) + ") has not answered";
  launcher.send(SIGSTOP);
  ASSERT_TRUE(wait_until([&] { return contains(run({LOCKSTEP_PROGRAM, "ps"}).err, silent + " within 1 s"); }));
  EXPECT_EQ((*shown(launcher))["answers"], false);
  const auto stop = run({LOCKSTEP_PROGRAM, "stop", id});
  EXPECT_EQ(stop.exit_code, 1);
  expect_text(stop.err, {"lockstep stop: " + silent});
  launcher.send(SIGCONT);
}

}  // namespace
}  // namespace lockstep::e2e::runs_test
