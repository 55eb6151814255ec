// SPDX-License-Identifier: Apache-2.0
#include "launcher/live/run_socket.h"

#include <gtest/gtest.h>

#include "launcher/client/runs.h"
#include "launcher/live/run_client.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"

namespace lockstep::launcher::run_socket_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_message;

RunFacts some_facts() {
  return {.run_id = "run-1",
          .pid = 4711,
          .host = "a",
          .first_rank = 4,
          .ranks = 4,
          .world_size = 8,
          .hosts = 2,
          .node_rank = 1,
          .age_ms = 61'000,
          .step = 17,
          .stops = 1,
          .log_dir = "/tmp/logs of mine",
          .command = "./train --epochs 3"};
}

TEST(RunSocket, FactsComeBackAsTheyWere) {
  const auto facts = decode_run_facts(encode(some_facts()));
  ASSERT_TRUE(facts);
  EXPECT_EQ(encode(*facts), encode(some_facts()));
  EXPECT_FALSE(decode_run_facts(""));
  EXPECT_FALSE(decode_run_facts("lockstep run 2\nrun x\n"));
}

TEST(RunSocket, WhatComesInMayBePrinted) {
  auto facts = some_facts();
  facts.command = "a\x1b[2Jb";
  EXPECT_EQ(decode_run_facts(encode(facts))->command, "a?[2Jb");
}

TEST(RunSocket, RequestsComeBackAsTheyWere) {
  for (const RunRequest& request :
       {RunRequest{.what = RunRequest::What::ps}, RunRequest{.what = RunRequest::What::stop},
        RunRequest{.what = RunRequest::What::stacks, .rank = 5, .pid = 4711},
        RunRequest{.what = RunRequest::What::logs, .lines = 7, .follow = true},
        RunRequest{.what = RunRequest::What::logs, .lines = 0}}) {
    std::string line = encode(request);
    ASSERT_EQ(line.back(), '\n');
    line.pop_back();
    const auto read = decode_run_request(line);
    ASSERT_TRUE(read) << line;
    EXPECT_EQ(encode(*read), encode(request));
  }
  const std::string whole = encode(RunRequest{});
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{{whole, ""},
                                                                                 {whole, "ps"},
                                                                                 {"what 0", "what 5"},
                                                                                 {"lines 50", "lines -1"},
                                                                                 {"lines 50", "lines 1000001"},
                                                                                 {"follow 0", "follow 2"},
                                                                                 {"rank 0", "rank -1"},
                                                                                 {"pid 0", "pid 4294967296"},
                                                                                 {"pid 0\\n", ""}}) {
    std::string bad = whole;
    bad.replace(bad.find(from), from.size(), to);
    EXPECT_FALSE(decode_run_request(bad)) << bad;
  }
}

TEST(RunSocket, NamesAreFoundByUserAmongListeners) {
  const auto own = run_socket_name(1000, "00ff", "my run\n1");
  EXPECT_EQ(own, "lockstep-run/1000/00ff/my_run_1");
  EXPECT_EQ(run_id_of(own), "my_run_1");
  EXPECT_EQ(run_id_of("lockstep-run/1000/0123/\x1b[2J$(id) 1"), "__2J__id__1") << "of another user's process";
  EXPECT_LE(run_socket_name(4294967294u, std::string(16, 'f'), std::string(300, 'x')).size(), 107u);
  const std::string text =
      "Num       RefCount Protocol Flags    Type St Inode Path\n"
      "0000000000000000: 00000002 00000000 00010000 0001 01 11 @lockstep-run/1000/00ff/run-a\n"
      "0000000000000000: 00000003 00000000 00000000 0001 03 12 @lockstep-run/1000/00ff/run-a\n"  // a connection of it
      "0000000000000000: 00000003 00000000 00000000 0001 03 13\n"
      "0000000000000000: 00000002 00000000 00010000 0001 01 14 @lockstep-run/10001/00fe/run-b\n"
      "0000000000000000: 00000002 00000000 00010000 0001 01 15 /run/lockstep-run/1000/x/y\n"
      "0000000000000000: 00000002 00000000 00010000 0001 01 16 @lockstep-run/1000/01/run-c\n";
  EXPECT_EQ(run_sockets(text, 1000),
            (std::vector<std::string>{"lockstep-run/1000/00ff/run-a", "lockstep-run/1000/01/run-c"}));
  EXPECT_EQ(run_sockets(text, 1001), std::vector<std::string>{});
}

FoundRun found(const std::string& id, pid_t pid, int node_rank = 0) {
  auto facts = some_facts();
  facts.run_id = id;
  facts.node_rank = node_rank;
  return {.socket = {}, .run_id = id, .pid = pid, .facts = facts};
}

TEST(ChooseRun, TakesAPrefixOfOneRun) {
  const std::vector<FoundRun> runs = {found("run-ab1", 1), found("run-ab2", 2), found("run-ab2", 3, 1),
                                      found("run-ab22", 4)};
  EXPECT_EQ(choose_run(runs, "run-ab1").pid, 1);
  EXPECT_EQ(choose_run(runs, "run-ab2").pid, 2) << "the whole id, of the host with the lowest node rank";
  EXPECT_EQ(choose_run(runs, "run-ab22").pid, 4);
  std::string page;
  // Without a name it is the only one.
  for (const char* const name : {"run-a", "x\n", ""}) page += error_of<Error>([&] { choose_run(runs, name); }) + "\n";
  for (const char* const name : {"run", ""}) page += error_of<Error>([&] { choose_run({}, name); }) + "\n";
  expect_message("launcher", "refusals", page);
  EXPECT_EQ(choose_run({runs.front()}, "").pid, runs.front().pid);
}

TEST(ListOfRuns, HasARowForEachAndNamesWhoIsSilent) {
  const std::vector<FoundRun> runs = {found("run-1", 4711, 1),
                                      {.socket = {}, .run_id = "run-2", .pid = 12, .facts = {}}};
  EXPECT_EQ(as_table(runs),
            "RUN    PID   RANKS     HOST    AGE    STEP  LOGS               COMMAND\n"
            "run-1  4711  4-7 of 8  1 of 2  1m01s  17    /tmp/logs of mine  ./train --epochs 3\n"
            "run-2  12    ?         ?       ?      ?     ?                  (does not answer)\n");
  expect_message("launcher", "json", as_json(runs));
  EXPECT_EQ(as_json(std::vector<FoundRun>{}), "[]\n");
}

}  // namespace
}  // namespace lockstep::launcher::run_socket_test
