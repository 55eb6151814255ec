// SPDX-License-Identifier: Apache-2.0
// Wrong variables, addresses, files and ranks get a clear error, and nothing hangs.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "runtime/job/exit_code.h"
#include "tests/e2e/launch.h"
#include "tests/support/error_of.h"
#include "tests/support/leftovers.h"
#include "tests/support/rank_processes.h"

namespace lockstep::e2e::bad_input_test {
namespace {

using lockstep::testing::expect_text;

namespace fs = std::filesystem;
using testing::RankProcesses;
using testing::run;

Variables by_hand(int rank, int world, int port, const std::string& address = "127.0.0.1") {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(world)},
          {"LOCAL_RANK", std::to_string(rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(world)},
          {"MASTER_ADDR", address},
          {"MASTER_PORT", std::to_string(port)},
          {"LOCKSTEP_TIMEOUT", "5"}};
}

Process start(const Variables& variables, const Words& actions = {"init", "sum"}) {
  return Process({.command = joined({RANK_PROGRAM}, actions), .environment = variables});
}

// One line of the library's, for an error nobody caught.
void expect_fatal(const Result& result, const std::vector<std::string>& says) {
  EXPECT_EQ(result.exit_code, 1) << result.err;
  expect_text(result.err, {"fatal: "});
  for (const auto& text : says) EXPECT_TRUE(contains(result.err, text)) << "wanted: " << text << "\n" << result.err;
}

TEST(BadInput, MissingRanksAreNamed) {
  const int port = testing::free_port();
  Process zero = start(by_hand(0, 4, port));
  Process one = start(by_hand(1, 4, port));
  // Both meet their deadline; who meets it second may have heard of the first by then.
  for (Process* rank : {&zero, &one}) {
    const auto result = rank->wait();
    EXPECT_TRUE(result.exit_code == 1 || result.exit_code == kExitPeerLost) << result.exit_code;
    expect_text(result.err, {"fatal: ", "ranks 2 and 3 of 4 did not come"});
  }
}

TEST(BadInput, MissingRanksUnderTheLauncherAreNamed) {
  // Rank 2 never joins; its program is something else.
  Process launcher({.command = run_command({"-n", "3", "--timeout", "3", "--grace", "10"}, RANK_PROGRAM,
                                           {"hang@2", "init", "sum"})});
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 1);
  // A rank that stood still for so long has not come either.
  EXPECT_TRUE(
      std::regex_search(result.err, std::regex("init_process_group: ranks? (([01], )*[01] and )?2 of 3 did not come")))
      << result.err;
}

TEST(BadInput, TwoProcessesWithOneRankAreBothNamed) {
  const int port = testing::free_port();
  Process zero = start(by_hand(0, 3, port));
  Process one = start(by_hand(1, 3, port));
  Process other = start(by_hand(1, 3, port));
  const auto pids = std::vector<std::string>{"pid " + std::to_string(one.pid()), "pid " + std::to_string(other.pid())};
  expect_fatal(one.wait(), pids);
  expect_fatal(other.wait(), pids);
  expect_fatal(zero.wait(), {});
}

TEST(BadInput, AnAddressThatIsNotOfThisHostListsThoseThatAre) {
  // 192.0.2.0/24 is set aside for documentation: nobody has it.
  Process zero = start(by_hand(0, 2, testing::free_port(), "192.0.2.1"));
  expect_fatal(zero.wait(), {"192.0.2.1", "127.0.0.1"});
}

TEST(BadInput, AnAddressWhereNobodyListensIsNamed) {
  const int port = testing::free_port();
  Process one = start(by_hand(1, 2, port));
  expect_fatal(one.wait(), {"127.0.0.1:" + std::to_string(port), "elapsed"});
}

TEST(BadInput, AHostNameThatDoesNotExistIsNamed) {
  Process one = start(by_hand(1, 2, testing::free_port(), "no-such-host.invalid"));
  expect_fatal(one.wait(), {"no-such-host.invalid"});
}

TEST(BadInput, VariablesThatAreNoRanks) {
  expect_fatal(start(by_hand(4, 4, 1)).wait(), {"RANK=4", "WORLD_SIZE=4"});
  auto variables = by_hand(0, 2, 1);
  variables["RANK"] = "first";
  expect_fatal(start(variables).wait(), {"RANK", "first"});
  variables = by_hand(0, 2, 1);
  variables["WORLD_SIZE"] = "";
  expect_fatal(start(variables).wait(), {"WORLD_SIZE"});
  variables = by_hand(0, 2, 1);
  variables.erase("MASTER_PORT");
  expect_fatal(start(variables).wait(), {"MASTER_PORT"});
}

TEST(BadInput, InitMethodsThatAreNone) {
  for (const std::string url :
       {"ftp://x", "tcp://127.0.0.1", "tcp://127.0.0.1:29500?rank=0&world_size=x", "file://relative"}) {
    expect_fatal(run({RANK_PROGRAM, "init:" + url}), {url});
  }
}

TEST(BadInput, BackendsThatAreNotHere) {
  expect_fatal(run({RANK_PROGRAM, "backend:nccl", "init"}), {"nccl"});
  expect_fatal(run({RANK_PROGRAM, "backend:bogus", "init"}), {"bogus"});
}

TEST(BadInput, AStaleMeetingFileDoesNotMisleadTheNextJob) {
  const fs::path path = fs::path(::testing::TempDir()) / ("stale-" + testing::job());
  const auto url = [&](int rank) {
    return "init:file://" + path.native() + "?world_size=2&rank=" + std::to_string(rank);
  };
  {  // a job whose rank 0, which wrote the file, is killed
    Process zero({.command = {RANK_PROGRAM, url(0), "ready", "hang"}});
    Process one({.command = {RANK_PROGRAM, url(1), "ready", "hang"}});
    ASSERT_TRUE(zero.await_output("ready") && one.await_output("ready"));
    zero.send(SIGKILL);
    one.send(SIGKILL);
    zero.wait();
    one.wait();
  }
  ASSERT_TRUE(fs::exists(path)) << "nobody could take it away";
  Process one({.command = {RANK_PROGRAM, url(1), "sum"}});  // sees the stale file first
  Process zero({.command = {RANK_PROGRAM, url(0), "sum"}});
  EXPECT_EQ(zero.wait().out, "sum 3 of 2\n");
  EXPECT_EQ(one.wait().out, "sum 3 of 2\n");
  fs::remove(path);
}

TEST(BadInput, AMeetingFileThatIsSomethingElseIsRefused) {
  const fs::path path = fs::path(::testing::TempDir()) / ("thesis-" + testing::job());
  std::ofstream(path) << "my thesis\n";
  for (const std::string rank : {"0", "1"}) {
    const auto result =
        run({RANK_PROGRAM, "init:file://" + path.native() + "?world_size=2&rank=" + rank}, {{"LOCKSTEP_TIMEOUT", "2"}});
    EXPECT_EQ(result.exit_code, 1);
    expect_text(result.err, {path.native()});
  }
  std::string text;
  std::getline(std::ifstream(path), text);
  EXPECT_EQ(text, "my thesis") << "it is not ours to replace";
  fs::remove(path);
}

TEST(BadInput, AFileInAFolderThatIsNotThereIsNamed) {
  expect_fatal(run({RANK_PROGRAM, "init:file:///no/such/folder/x?world_size=2&rank=0"}), {"/no/such/folder"});
}

TEST(BadInput, RanksWithDifferentModelsAllSaySoUnderTheLauncher) {
  const auto result = run(run_command({"-n", "3", "--grace", "3600"}, RANK_PROGRAM,
                                      {"ignore:15", "init", "model:4@0", "model:4@1", "model:3@2"}));
  EXPECT_EQ(result.exit_code, 1) << result.err;
  for (const std::string rank : {"0", "1", "2"}) {
    const auto word = last_word_of_rank(result, rank);
    EXPECT_TRUE(contains(word, "the ranks train different models")) << word << "\n" << result.err;
    EXPECT_TRUE(contains(word, "rank 2")) << word << "\n" << result.err;
  }
  EXPECT_TRUE(lines_of(result.err).back().starts_with("lockstep run: the ranks disagree: ")) << result.err;
}

TEST(BadInput, ARankThatThrowsIsNamedByTheLauncherAndToldToTheOthers) {
  const auto result = run(run_command({"-n", "3"}, RANK_PROGRAM, {"init", "sum", "throw:of my own@1", "loop"}));
  EXPECT_EQ(result.exit_code, 128 + SIGABRT) << result.err;
  expect_text(result.err, {"of my own", "lockstep run: rank 1 (host "});
}

TEST(BadInput, ARankThatThrowsThroughMainsHandlerIsNamedAsTheCause) {
  // It tells the others before it ends, and may stand still in between.
  const auto result =
      run(run_command({"-n", "3", "--grace", "30"}, RANK_PROGRAM, {"init", "sum", "fail:of my own@1", "loop"}));
  EXPECT_EQ(result.exit_code, 1) << result.err;
  expect_text(result.err, {"[rank 1] main caught: of my own", "lockstep run: rank 1 (host "});
}

TEST(BadInput, ARankThatReturnsEarlyIsNamed) {
  const auto result = run(run_command({"-n", "3", "--grace", "3600"}, RANK_PROGRAM,
                                      {"ignore:15", "init", "sum", "leave@1", "exit:0@1", "loop"}));
  EXPECT_EQ(result.exit_code, 1) << result.err;
  for (const std::string rank : {"0", "2"}) {
    const auto word = last_word_of_rank(result, rank);
    EXPECT_TRUE(contains(word, "rank 1 (host ")) << word << "\n" << result.err;
    EXPECT_TRUE(contains(word, "left after collective")) << word << "\n" << result.err;
  }
  expect_text(result.err, {"lockstep run: rank 1 failed first: it exited with code 0 while the others still "
                           "needed it"});
}

}  // namespace
}  // namespace lockstep::e2e::bad_input_test
