// SPDX-License-Identifier: Apache-2.0
// A backend between processes of one host, started by hand: the same suite, and deaths of every kind.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <string>
#include <string_view>

#ifndef LOCKSTEP_TEST_BACKEND
#define LOCKSTEP_TEST_IS_SHM
#endif
#include "tests/support/error_of.h"
#include "tests/support/leftovers.h"
#include "tests/support/rank_processes.h"
#include "tests/support/rank_threads.h"

#ifndef CONFORMANCE_RANK
#error "the path of the rank program"
#endif

namespace lockstep::testing::processes_test {
namespace {

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
    expect_text(result.out, {"backend " LOCKSTEP_TEST_BACKEND "\nsuite passed"});
  }
}

// "cause kind=KIND rank=RANK pid=PID ", as the rank program has it.
std::string cause_line(const std::string& kind, int rank, pid_t pid) {
  return "cause kind=" + kind + " rank=" + std::to_string(rank) + " pid=" + std::to_string(pid) + " ";
}
std::int64_t sequence_in(const std::string& out) {
  const std::string name = " sequence=";
  const std::size_t at = out.find(name);
  return at == std::string::npos ? -1 : std::stoll(out.substr(at + name.size()));
}

// Starts `size` ranks of which rank 1 comes to harm; the others have one cause of this kind, which is about rank 1.
std::vector<Result> hurt_rank_1(int size, const std::string& how, const std::string& kind, Variables environment = {}) {
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
    expect_text(out, {cause_line(kind, 1, pid), what_they_say, "rank 1 (host "});
    // The same for all. Over a network a rank may hear of it from its own connection or from the job's membership, in
    // whichever's words.
    const std::string cause = out.substr(out.find('\n') + 1);
    if (first.empty()) first = cause;
    if (kIsShm) {
      EXPECT_EQ(cause, first);
    }
  }
  return results;
}

// The timeout of a collective is five minutes here: only the kernel's word can tell in time that a rank is dead. In
// shared memory that is a lock; else the connections tell of it first, or the job's membership.
TEST(Deaths, AKilledRankIsNamedWithHostPidAndOperation) {
  for (const int size : {2, 4}) {
    const auto results = hurt_rank_1(size, "kill", "lost");
    EXPECT_EQ(results[1].signal, SIGKILL);
    if (kIsShm) {
      EXPECT_GE(sequence_in(results[0].out), 200) << results[0].out;
    }
  }
}

#ifdef LOCKSTEP_TEST_IS_SHM
// It sees by the rank's own memory how far that is, which shm alone fills bit by bit.
TEST(Deaths, ARankKilledAmidACollectiveIsNamed) {
  for (const int size : {2, 3}) {
    const auto results = hurt_rank_1(size, "midway", "lost");
    EXPECT_EQ(results[1].signal, SIGKILL);
    expect_text(results[1].out, {"the first is reduced, the last is not"});
    EXPECT_GE(sequence_in(results[0].out), 1) << results[0].out;
    expect_text(results[0].out,
                {" has died: its process ended, by a signal or an exit, without closing its group; rank ",
                 " was in all_reduce ", " (sum, 16777216 x float32); the last collective it had started is "});
  }
}
#endif

TEST(Deaths, AProcessThatExitsWithoutClosingItsGroup) {
  for (const auto& [how, exit_code] : {std::pair("exit", 0), {"exit7", 7}, {"quick7", 7}}) {
    const auto results = hurt_rank_1(3, how, "lost");
    EXPECT_EQ(results[1].exit_code, exit_code) << how << results[1].err;
  }
}

TEST(Ends, AGroupThatAStaticHoldsEndsInOrder) {
  RankProcesses ranks(3, {.command = {CONFORMANCE_RANK, "global"}, .environment = kBackend});
  for (const Result& result : ranks.wait()) {
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    expect_text(result.out, {"returning"});
    EXPECT_EQ(result.err.find("warning"), std::string::npos) << result.err;
  }
}

TEST(Deaths, AStoppedRankIsNamedBeforeTheTimeout) {
  const auto results = hurt_rank_1(3, "stop", "silent", {{"LOCKSTEP_LIVENESS", "on"}});
  expect_text(results[0].out, {"its process is stopped (SIGSTOP or Ctrl-Z)"});
  // By the timeout if nobody may call it silent.
  hurt_rank_1(3, "stop", "timeout", {{"LOCKSTEP_TIMEOUT", "5"}, {"LOCKSTEP_LIVENESS", "off"}});
}

TEST(Hangs, ARankThatStartsNothingMoreIsNamedWithItsLastCollective) {
  const auto results = hurt_rank_1(3, "hang", "silent", {{"LOCKSTEP_HANG_TIMEOUT", "2"}});
  EXPECT_GE(sequence_in(results[0].out), 200) << results[0].out;
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
    expect_text(result.out, {"PeerLost: ", cause_line("silent", 0, ranks[0].pid())});
    if (kIsShm) {
      EXPECT_GE(sequence_in(result.out), 1) << result.out;
    }
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
}  // namespace lockstep::testing::processes_test
