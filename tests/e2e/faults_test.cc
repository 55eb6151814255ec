// SPDX-License-Identifier: Apache-2.0
// A rank that is killed, stopped or late at a step: what the others do and say.
#include <gtest/gtest.h>
#include <signal.h>

#include "lockstep/base/error.h"
#include "tests/e2e/launch.h"
#include "tests/support/fault_plan.h"
#include "tests/support/leftovers.h"

namespace lockstep::e2e::faults_test {
namespace {

using testing::Fault;
using testing::live_ranks;
using testing::parse_faults;

// Three ranks that reduce at each of `steps` steps; rank 1 comes to harm.
ProcessOptions three_ranks(int steps, const std::string& faults, const Words& flags = {}) {
  return {.command = run_command(joined({"-n", "3"}, flags), RANK_PROGRAM, {"init", "steps:" + std::to_string(steps)}),
          .environment = {{testing::kFaultsVariable, faults}}};
}

std::string step_line(int rank, int step) {
  return "[rank " + std::to_string(rank) + "] step " + std::to_string(step) + " sum 6\n";
}

// This rank has done the steps before `step`.
void expect_done_before(int step, int rank, const std::string& out) {
  for (int done = 0; done < step; ++done) EXPECT_TRUE(contains(out, step_line(rank, done))) << out;
}

// Every rank has, and none has done that one: it takes all three.
void expect_steps_before(int step, const std::string& out) {
  for (int rank = 0; rank < 3; ++rank) {
    expect_done_before(step, rank, out);
    EXPECT_FALSE(contains(out, step_line(rank, step))) << out;
  }
}

TEST(FaultPlan, IsReadAsWritten) {
  const auto faults = parse_faults("kill:rank=1,step=5;stop:step=3,rank=2;delay:rank=0,step=4,ms=250");
  ASSERT_EQ(faults.size(), 3u);
  EXPECT_EQ(faults[0].kind, Fault::Kind::kill);
  EXPECT_EQ(faults[0].rank, 1);
  EXPECT_EQ(faults[0].step, 5);
  EXPECT_EQ(faults[1].kind, Fault::Kind::stop);
  EXPECT_EQ(faults[1].rank, 2);
  EXPECT_EQ(faults[1].step, 3);
  EXPECT_EQ(faults[2].kind, Fault::Kind::delay);
  EXPECT_EQ(faults[2].limit, std::chrono::milliseconds(250));
  EXPECT_TRUE(parse_faults("").empty());
}

TEST(FaultPlan, WhatIsNoneIsRefused) {
  for (const auto* text :
       {"kill", "kill:", "kill:rank=1", "kill:step=1", "maim:rank=1,step=1", "kill:rank=x,step=1",
        "kill:rank=1,step=-1", "kill:rank=1,rank=2,step=1", "kill:rank=1,step=1,ms=5", "delay:rank=1,step=1",
        "kill:rank=1,step=1,colour=2", "kill:rank=1,step=1;;stop:rank=1,step=2"}) {
    EXPECT_THROW(parse_faults(text), InvalidArgument) << text;
  }
}

TEST(Faults, ARankIsKilledAtAStep) {
  Process launcher(three_ranks(9, "kill:rank=1,step=5"));
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_TRUE(contains(result.err, "lockstep run: rank 1 (host ")) << result.err;
  expect_done_before(5, 1, result.out);
  for (const int rank : {0, 2}) {
    expect_done_before(4, rank, result.out);  // it took part in step 4, but may have been ended before it said so
    EXPECT_FALSE(contains(result.out, step_line(rank, 5))) << result.out;
  }
}

TEST(Faults, ARankIsStoppedAtAStepAndTheOthersNameIt) {
  auto options = three_ranks(9, "stop:rank=1,step=3");
  options.environment["LOCKSTEP_LIVENESS"] = "on";
  Process launcher(std::move(options));
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 75) << result.err;
  // The launcher ends the job at the first one; the other may have had no time to speak.
  const auto words = last_word_of_rank(result, "0") + last_word_of_rank(result, "2");
  EXPECT_TRUE(contains(words, "rank 1 (host ")) << result.err;
  EXPECT_TRUE(contains(words, "stopped answering")) << result.err;
  EXPECT_TRUE(contains(words, "its process is stopped (SIGSTOP or Ctrl-Z)")) << result.err;
  expect_steps_before(3, result.out);
}

TEST(Faults, ARankIsStoppedAtAStepAndGoesOn) {
  Process launcher(three_ranks(6, "stop:rank=1,step=3"));
  ASSERT_TRUE(launcher.await_output("step 2 sum 6", 3));
  ASSERT_TRUE(testing::wait_until([] {
    const auto ranks = live_ranks(RANK_PROGRAM);
    return ranks.contains(1) && testing::process_state(ranks.at(1)) == 'T';
  }));
  expect_steps_before(3, launcher.out());
  kill(live_ranks(RANK_PROGRAM).at(1), SIGCONT);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_steps_before(6, result.out);
}

TEST(Faults, ARankIsLateAtAStepAndTheOthersWait) {
  Process launcher(three_ranks(6, "delay:rank=1,step=2,ms=30000"));
  ASSERT_TRUE(launcher.await_output("delayed at step 2"));
  ASSERT_TRUE(launcher.await_output("step 1 sum 6", 3));
  expect_steps_before(2, launcher.out());
  kill(live_ranks(RANK_PROGRAM).at(1), SIGUSR2);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_steps_before(6, result.out);
}

TEST(Faults, ADelayIsBounded) {
  Process launcher(three_ranks(3, "delay:rank=1,step=1,ms=1"));
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_steps_before(3, result.out);
}

TEST(Faults, APlanThatIsNoneIsSaid) {
  Process launcher(three_ranks(3, "kill:rank=one,step=1"));
  const auto result = launcher.wait();
  EXPECT_NE(result.exit_code, 0);
  EXPECT_TRUE(contains(result.err, "kill:rank=one,step=1")) << result.err;
}

}  // namespace
}  // namespace lockstep::e2e::faults_test
