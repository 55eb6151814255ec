// SPDX-License-Identifier: Apache-2.0
// What only processes show of a group over NCCL: the watchdog that ends them, and who gets which GPU.
#include <gtest/gtest.h>

#include <csignal>

#include "runtime/job/exit_code.h"
#include "tests/support/error_of.h"
#include "tests/support/rank_processes.h"

namespace lockstep::testing::nccl_processes_test {
namespace {

RankProcesses start(int ranks, std::vector<std::string> what, Variables environment) {
  environment["CONFORMANCE_BACKEND"] = "nccl";
  what.insert(what.begin(), CONFORMANCE_RANK);
  return {ranks, {.command = std::move(what), .environment = std::move(environment)}};
}

TEST(NcclWatchdog, EndsAProcessWhoseAbortBlocks) {
  // Rank 1's network is gone, and its abort does not return.
  const auto stuck = [](const char* watchdog) {
    return start(2, {"loop", "quiet"},
                 {{"LOCKSTEP_FAKE_NCCL", "all_reduce=remote@5:rank1;abort=block:rank1"},
                  {"LOCKSTEP_FAILURE_WATCHDOG", watchdog}});
  };
  RankProcesses with = stuck("1"), without = stuck("off");

  auto results = with.wait();
  EXPECT_EQ(results[0].exit_code, 3) << results[0].err;
  expect_text(results[0].out, {"PeerLost: rank 1 (host "});
  EXPECT_EQ(results[1].exit_code, kExitAbortBlocked) << results[1].err;
  expect_text(results[1].err,
              {"the abort of rank 1 (host ", "has not returned in 1 s", "the group had failed: rank 1 (host ",
               "flight record: all_reduce ", "not seen done", "ends with exit code 76"});

  results = without.wait();
  EXPECT_EQ(results[1].exit_code, 3) << results[1].err;
  expect_text(results[1].out, {"PeerLost: rank 1 (host "});
  expect_text(results[1].err, {"the process continues"});
}

// Rank 1's GPU is broken by a kernel: it is named whether its own call meets that first, or NCCL's.
TEST(NcclDeaths, ARankWhoseDeviceIsBrokenIsNamed) {
  for (int operation = 60; operation < 64; ++operation) {
    const std::string rule = "LOCKSTEP_FAKE_CUDA=operation=710@" + std::to_string(operation);
    const std::string program =
        std::string("[ $RANK = 0 ] || export '") + rule + "'; exec " + CONFORMANCE_RANK + " loop quiet";
    RankProcesses ranks(2, {.command = {"/bin/sh", "-c", program},
                            .environment = {{"CONFORMANCE_BACKEND", "nccl"}, {"LOCKSTEP_FAILURE_WATCHDOG", "1"}}});
    const auto results = ranks.wait();
    EXPECT_EQ(results[0].exit_code, 3) << results[0].err;
    expect_text(results[0].out, {"cause kind=failed rank=1 pid=" + std::to_string(ranks[1].pid())});
    EXPECT_NE(results[1].exit_code, 0);
  }
}

// The timeout of everything is five minutes.
TEST(NcclDeaths, ARankThatDiesWhileNcclConnectsIsNamed) {
  RankProcesses ranks =
      start(3, {"loop", "quiet"}, {{"LOCKSTEP_FAKE_NCCL", "init=hang:rank1"}, {"LOCKSTEP_LOG_LEVEL", "debug"}});
  ASSERT_TRUE(ranks.await_output(" connects, by NCCL "));
  ranks.kill(1, SIGKILL);
  for (const int survivor : {0, 2}) {
    const Result result = ranks[survivor].wait();
    EXPECT_NE(result.exit_code, 0);
    expect_text(result.err, {"rank 1 (host ", "pid " + std::to_string(ranks[1].pid())});
  }
}

// NCCL says nothing of the death, and the timeout of everything is five minutes.
TEST(NcclDeaths, ARankThatLeavesHearsOfThem) {
  for (const std::string how : {"idle", "busy"}) {
    RankProcesses ranks = start(2, {"leave", how}, {});
    ASSERT_TRUE(ranks[0].await_output("leaving"));
    ranks.kill(1, SIGKILL);
    const Result result = ranks[0].wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    expect_text(result.out, {"left"});
    expect_text(result.err, {"has not ended in order: rank 1 (host ", "pid " + std::to_string(ranks[1].pid()),
                             how == "busy" ? "was in all_reduce " : "was in no collective"});
  }
}

TEST(NcclGpus, WhatIsMissingIsNamed) {
  const std::pair<Variables, std::vector<std::string>> cases[] = {
      {{{"LOCKSTEP_FAKE_GPUS", "0"}}, {"backend 'nccl' was asked for"}},
      {{{"LOCKSTEP_NCCL_LIB", "/nowhere/libnccl.so.2"}}, {"/nowhere/libnccl.so.2", "install libnccl2"}},
      {{{"LOCKSTEP_FAKE_NCCL", "version=22605"}}, {"is NCCL 2.26.5, and 2.27.3 or newer is needed"}},
      {{{"LOCKSTEP_DEVICE", "cuda:0"}},
       {"rank 0 (host ", " and rank 1 (host ", "are both on GPU-fa6ec0da-", "--oversubscribe-gpu"}}};
  for (const auto& [environment, says] : cases) {
    RankProcesses ranks = start(2, {"groups"}, environment);
    for (const Result& result : ranks.wait()) {
      EXPECT_EQ(result.exit_code, 1) << result.out;
      for (const std::string& text : says) expect_text(result.err, {text});
    }
  }
}

}  // namespace
}  // namespace lockstep::testing::nccl_processes_test
