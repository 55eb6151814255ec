// SPDX-License-Identifier: Apache-2.0
// `lockstep ps`, `logs` and `stop`, from another terminal.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>

#include "tests/e2e/launch.h"
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

std::string id_of(const Process& launcher) {
  const auto run = shown(launcher);
  return run ? (*run)["run_id"].get<std::string>() : "";
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
  const auto first = run({LOCKSTEP_PROGRAM, "stop", id});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.out,
            id + ": asked to stop; the ranks may take time to save; run lockstep stop again to kill the ranks\n");
  ASSERT_TRUE(launcher.await_output("caught 15", 2));
  EXPECT_TRUE(launcher.running());
  // What comes within a moment is still the first request.
  EXPECT_TRUE(wait_until([&] {
    run({LOCKSTEP_PROGRAM, "stop", id});
    return !launcher.running();
  }));
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  expect_text(result.err, {"SIGTERM: passed on to 2 ranks", "second SIGTERM: killing 2 ranks"});
}

TEST(Runs, WithOneBeginningAreToldApart) {
  Process one({.command = plain(1, {"ready", "hang"})});
  Process other({.command = plain(1, {"ready", "hang"})});
  ASSERT_TRUE(one.await_output("ready"));
  ASSERT_TRUE(other.await_output("ready"));
  const std::string id = id_of(one);
  const auto both = run({LOCKSTEP_PROGRAM, "stop", "run-"});  // and whatever else runs here
  EXPECT_EQ(both.exit_code, 1);
  expect_text(both.err, {"lockstep stop: 'run-' may mean run-", " or run-", "give more characters of the run id"});
  EXPECT_EQ(run({LOCKSTEP_PROGRAM, "stop", id}).exit_code, 0);
  EXPECT_EQ(one.wait().exit_code, 128 + SIGTERM);
  EXPECT_TRUE(other.running());
}

TEST(Runs, ALauncherThatIsStoppedIsNamedAndNotWaitedFor) {
  Process launcher({.command = plain(1, {"ready", "hang"})});
  Process other({.command = plain(1, {"ready", "hang"})});
  ASSERT_TRUE(launcher.await_output("ready"));
  ASSERT_TRUE(other.await_output("ready"));
  const std::string id = id_of(launcher);
  launcher.send(SIGSTOP);
  ASSERT_TRUE(wait_until([&] {
    const auto one = shown(launcher);
    return one && (*one)["answers"] == false;
  }));
  EXPECT_EQ((*shown(launcher))["run_id"], id);
  EXPECT_EQ((*shown(other))["answers"], true);
  const auto pid = std::to_string(launcher.pid());
  expect_text(run({LOCKSTEP_PROGRAM, "ps"}).err,
              {id + " (pid " + pid + ") has not answered within 1 s", "kill -CONT " + pid});
  const auto stop = run({LOCKSTEP_PROGRAM, "stop", id});
  EXPECT_EQ(stop.exit_code, 1);
  expect_text(stop.err, {"lockstep stop: " + id + " (pid " + pid + ") has not answered"});
  launcher.send(SIGCONT);
}

TEST(Runs, OfAnotherUserAreNeitherShownNorReached) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may become another user";
  Process launcher({.command = plain(1, {"ready", "hang"})});
  ASSERT_TRUE(launcher.await_output("ready"));
  const std::string id = id_of(launcher);
  const Words as_another = {"setpriv", "--reuid=65533", "--regid=65533", "--clear-groups", LOCKSTEP_PROGRAM};
  const auto list = run(joined(as_another, {"ps", "--json"}));
  if (list.exit_code != 0) GTEST_SKIP() << "another user can't start the program here: " << list.err;
  EXPECT_EQ(list.out, "[]\n");
  const auto stop = run(joined(as_another, {"stop", id}));
  EXPECT_EQ(stop.exit_code, 1);
  expect_text(stop.err, {"no run of this user on this host begins with '" + id + "'"});
  EXPECT_TRUE(launcher.running());
}

}  // namespace
}  // namespace lockstep::e2e::runs_test
