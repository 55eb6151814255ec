// The shm backend between processes: the same suite, and deaths of every kind.
#include <gtest/gtest.h>

#include <csignal>

#include "tests/support/leftovers.h"
#include "tests/support/rank_processes.h"

#ifndef CONFORMANCE_RANK
#error "the path of the rank program"
#endif

namespace lockstep::testing {
namespace {

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

class Suite : public ::testing::TestWithParam<int> {};

// TSan sees nothing of what crosses between processes (`conformance` runs the same between threads), and makes eight of
// them on two cores take minutes.
#ifdef __SANITIZE_THREAD__
INSTANTIATE_TEST_SUITE_P(Processes, Suite, ::testing::Values(2, 3));
#else
INSTANTIATE_TEST_SUITE_P(Processes, Suite, ::testing::Values(2, 3, 4, 8));
#endif

TEST_P(Suite, Passes) {
  RankProcesses ranks(GetParam(), {.command = {CONFORMANCE_RANK, "suite"}});
  for (const Result& result : ranks.wait(Deadline::after(std::chrono::seconds(200)))) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    expect_part(result.out, "backend shm\nsuite passed");
  }
}

// Starts `size` ranks of which rank 1 comes to harm, and looks at what the others say.
std::vector<Result> hurt_rank_1(int size, const std::string& how, Variables environment = {}) {
  const std::string what_they_say = environment.contains("LOCKSTEP_LIVENESS") ? "Timeout: " : "PeerLost: ";
  RankProcesses ranks(size, {.command = {CONFORMANCE_RANK, "loop", how}, .environment = std::move(environment)});
  const pid_t pid = ranks[1].pid();
  if (how == "stop") {
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

// The timeout of a collective is five minutes here: only the kernel's word can tell in time that a rank is dead.
TEST(Deaths, AKilledRankIsNamedWithHostPidAndOperation) {
  for (const int size : {2, 4}) {
    const auto results = hurt_rank_1(size, "kill");
    EXPECT_EQ(results[1].signal, SIGKILL);
    expect_part(results[0].out, "PeerLost: ");
    expect_part(results[0].out, "has died");
    expect_part(results[0].out, "all_reduce 2");
  }
}

TEST(Deaths, AProcessThatExitsWithoutClosingItsGroup) {
  const auto results = hurt_rank_1(3, "exit");
  EXPECT_EQ(results[1].exit_code, 0);
  expect_part(results[0].out, "PeerLost: ");
  expect_part(results[0].out, "without closing its group");
}

TEST(Deaths, ARankThatThrows) {
  const auto results = hurt_rank_1(3, "throw");
  EXPECT_EQ(results[1].exit_code, 1);
  expect_part(results[1].err, "rank 1 can't read its data");
  expect_part(results[0].out, "PeerLost: ");
  expect_part(results[0].out, "ended by an exception");
}

TEST(Deaths, AStoppedRankIsNamedBeforeTheTimeout) {
  const auto results = hurt_rank_1(3, "stop");
  expect_part(results[0].out, "PeerLost: ");
  expect_part(results[0].out, "stopped answering");
  expect_part(results[0].out, "its process is stopped (SIGSTOP or Ctrl-Z)");
}

TEST(Deaths, AStoppedRankIsNamedByTheTimeoutIfNobodyMayCallItSilent) {
  const auto results = hurt_rank_1(3, "stop", {{"LOCKSTEP_TIMEOUT", "5"}, {"LOCKSTEP_LIVENESS", "off"}});
  expect_part(results[0].out, "Timeout: ");
  expect_part(results[0].out, "not arrived: rank 1 (");
}

TEST(Deaths, NothingIsLeftWhenAllAreKilled) {
  Footprint footprint;
  {
    RankProcesses ranks(3, {.command = {CONFORMANCE_RANK, "loop", "quiet"}});
    ASSERT_TRUE(ranks.await_output("backend shm"));
    footprint.look();
    EXPECT_EQ(footprint.pids().size(), 3u);
    for (int r = 0; r < 3; ++r) ranks.kill(r, SIGKILL);
    for (const Result& result : ranks.wait()) EXPECT_EQ(result.signal, SIGKILL);
  }
  EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
}

}  // namespace
}  // namespace lockstep::testing
