// SPDX-License-Identifier: Apache-2.0
// A backend between processes of one host, started by hand: the same suite, and deaths of every kind.
#include <gtest/gtest.h>

#include <csignal>
#include <string_view>

#ifndef LOCKSTEP_TEST_BACKEND
#define LOCKSTEP_TEST_IS_SHM
#endif
#include "tests/support/leftovers.h"
#include "tests/support/rank_processes.h"
#include "tests/support/rank_threads.h"

#ifndef CONFORMANCE_RANK
#error "the path of the rank program"
#endif

namespace lockstep::testing {
namespace {

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

constexpr bool kIsShm = std::string_view(LOCKSTEP_TEST_BACKEND) == "shm";
// On one host nobody has to ask for shared memory.
const Variables kBackend = kIsShm ? Variables{} : Variables{{"CONFORMANCE_BACKEND", LOCKSTEP_TEST_BACKEND}};

class Suite : public ::testing::TestWithParam<int> {};

// TSan sees nothing of what crosses between processes (`conformance` runs the same between threads), and makes eight of
// them on two cores take minutes.
#ifdef __SANITIZE_THREAD__
const std::vector<int> kSizes = {2, 3};
#else
const std::vector<int> kSizes = {2, 3, 4, 8};
#endif
// What depends on the world's size all backends over a wire share; unit_comm_wire has it.
INSTANTIATE_TEST_SUITE_P(Processes, Suite, ::testing::ValuesIn(kIsShm ? kSizes : std::vector<int>{3}));

TEST_P(Suite, Passes) {
  RankProcesses ranks(GetParam(), {.command = {CONFORMANCE_RANK, "suite"}, .environment = kBackend});
  for (const Result& result : ranks.wait(Deadline::after(std::chrono::seconds(200)))) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    expect_part(result.out, "backend " LOCKSTEP_TEST_BACKEND "\nsuite passed");
  }
}

// Starts `size` ranks of which rank 1 comes to harm, and looks at what the others say.
std::vector<Result> hurt_rank_1(int size, const std::string& how, Variables environment = {}) {
  environment.insert(kBackend.begin(), kBackend.end());
  const std::string what_they_say = environment.contains("LOCKSTEP_TIMEOUT") ? "Timeout: " : "PeerLost: ";
  RankProcesses ranks(size, {.command = {CONFORMANCE_RANK, "loop", how}, .environment = std::move(environment)});
  const pid_t pid = ranks[1].pid();
  if (how == "stop" || how == "hang") {
    for (int r = 0; r < size; ++r) {
      if (r == 1) continue;
      EXPECT_TRUE(ranks[r].await_output(what_they_say));
    }
    ranks.kill(1, SIGKILL);
  }
  auto results = ranks.wait();
  std::string first;
  for (int r = 0; r < size; ++r) {
    if (r == 1) continue;
    const std::string& out = results[static_cast<std::size_t>(r)].out;
    EXPECT_EQ(results[static_cast<std::size_t>(r)].exit_code, 3) << out << results[static_cast<std::size_t>(r)].err;
    expect_part(out, "rank 1 (host ");
    expect_part(out, "pid " + std::to_string(pid));
    // One cause, the same for all.
    const std::string cause = out.substr(out.find('\n') + 1);
    if (first.empty()) first = cause;
    EXPECT_EQ(cause, first);
  }
  return results;
}

// The timeout of a collective is five minutes here: only the kernel's word can tell in time that a rank is dead. In
// shared memory that is a lock; else the connections tell of it first, or the job's membership.
TEST(Deaths, AKilledRankIsNamedWithHostPidAndOperation) {
  for (const int size : {2, 4}) {
    const auto results = hurt_rank_1(size, "kill");
    EXPECT_EQ(results[1].signal, SIGKILL);
    expect_part(results[0].out, "PeerLost: ");
    if (!kIsShm) continue;
    expect_part(results[0].out, "has died");
    expect_part(results[0].out, "all_reduce 2");
  }
}

#ifdef LOCKSTEP_TEST_IS_SHM
// It sees by the rank's own memory how far that is, which shm alone fills bit by bit.
TEST(Deaths, ARankKilledAmidACollectiveIsNamed) {
  for (const int size : {2, 3}) {
    const auto results = hurt_rank_1(size, "midway");
    EXPECT_EQ(results[1].signal, SIGKILL);
    expect_part(results[1].out, "the first is reduced, the last is not");
    expect_part(results[0].out, "has died");
    expect_part(results[0].out, "was in all_reduce ");
  }
}
#endif

TEST(Deaths, AProcessThatExitsWithoutClosingItsGroup) {
  const auto results = hurt_rank_1(3, "exit");
  EXPECT_EQ(results[1].exit_code, 0);
  expect_part(results[0].out, "PeerLost: ");
  if (kIsShm) expect_part(results[0].out, "without closing its group");
}

TEST(Deaths, AProcessThatCallsExitInTraining) {
  for (const std::string how : {"exit7", "quick7"}) {
    const auto results = hurt_rank_1(3, how);
    EXPECT_EQ(results[1].exit_code, 7) << how << results[1].err;
    expect_part(results[0].out, "PeerLost: ");
  }
}

TEST(Ends, AGroupThatAStaticHoldsEndsInOrder) {
  RankProcesses ranks(3, {.command = {CONFORMANCE_RANK, "global"}, .environment = kBackend});
  for (const Result& result : ranks.wait()) {
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    expect_part(result.out, "returning");
    EXPECT_EQ(result.err.find("warning"), std::string::npos) << result.err;
  }
}

TEST(Deaths, ARankThatThrows) {
  const auto results = hurt_rank_1(3, "throw");
  EXPECT_EQ(results[1].exit_code, 1);
  expect_part(results[1].err, "rank 1 can't read its data");
  expect_part(results[0].out, "PeerLost: ");
  expect_part(results[0].out, "ended by an exception");
}

TEST(Deaths, AStoppedRankIsNamedBeforeTheTimeout) {
  const auto results = hurt_rank_1(3, "stop", {{"LOCKSTEP_LIVENESS", "on"}});
  expect_part(results[0].out, "PeerLost: ");
  expect_part(results[0].out, "stopped answering");
  expect_part(results[0].out, "its process is stopped (SIGSTOP or Ctrl-Z)");
}

TEST(Deaths, AStoppedRankIsNamedByTheTimeoutIfNobodyMayCallItSilent) {
  const auto results = hurt_rank_1(3, "stop", {{"LOCKSTEP_TIMEOUT", "5"}, {"LOCKSTEP_LIVENESS", "off"}});
  expect_part(results[0].out, "Timeout: ");
  expect_part(results[0].out, "not arrived: rank 1 (");
}

TEST(Hangs, ARankThatStartsNothingMoreIsNamedWithItsLastCollective) {
  const auto results = hurt_rank_1(3, "hang", {{"LOCKSTEP_HANG_TIMEOUT", "2"}});
  expect_part(results[0].out, "PeerLost: ");
  expect_part(results[0].out, " hangs: the last that it started is collective ");
  expect_part(results[0].out, " (all_reduce), and nothing since for ");
}

// Rank 0 hosts the store, which then can't be asked whose cause was the first. No goodbye and no timeout ends this.
TEST(Deaths, AStoppedRankThatHostsTheStore) {
  Variables environment = kBackend;
  environment["LOCKSTEP_LIVENESS"] = "on";
  RankProcesses ranks(3, {.command = {CONFORMANCE_RANK, "loop", "quiet"}, .environment = environment});
  ASSERT_TRUE(ranks.await_output("looping"));
  ranks.kill(0, SIGSTOP);
  for (const int survivor : {1, 2}) {
    const Result result = ranks[survivor].wait();
    EXPECT_EQ(result.exit_code, 3) << result.err;
    expect_part(result.out, "PeerLost: rank 0 (host ");
    expect_part(result.out, "pid " + std::to_string(ranks[0].pid()));
    expect_part(result.out, "stopped answering");
    expect_part(result.out, kIsShm ? "the last collective it had started is " : "was in ");
  }
  ranks.kill(0, SIGKILL);
}

TEST(Deaths, NothingIsLeftWhenAllAreKilled) {
  Footprint footprint;
  {
    RankProcesses ranks(3, {.command = {CONFORMANCE_RANK, "loop", "quiet"}, .environment = kBackend});
    ASSERT_TRUE(ranks.await_output("looping"));
    footprint.look();
    EXPECT_EQ(footprint.pids().size(), 3u);
    // All at once: none is to hear of another's death.
    for (const int signal : {SIGSTOP, SIGKILL}) {
      for (int r = 0; r < 3; ++r) ranks.kill(r, signal);
    }
    for (const Result& result : ranks.wait()) EXPECT_EQ(result.signal, SIGKILL);
  }
  EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
}

}  // namespace
}  // namespace lockstep::testing
