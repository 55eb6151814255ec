// SPDX-License-Identifier: Apache-2.0
// Groups over Gloo in programs that have another Gloo in themselves, as LibTorch 2.x is: its functions, which end the
// process, are what the dynamic linker finds first. It is preloaded.
#include <gtest/gtest.h>

#include <csignal>

#include "tests/support/error_of.h"
#include "tests/support/rank_processes.h"

namespace lockstep::testing {
namespace {

Variables beside_another_gloo(const std::string& preloaded, Variables environment = {}) {
  environment["CONFORMANCE_BACKEND"] = "gloo";
  environment["LD_PRELOAD"] = preloaded;
  return environment;
}

TEST(BesideAnotherGloo, AGroupDoesAllCollectives) {
  RankProcesses ranks(2, {.command = {RANK_PROGRAM, "suite"}, .environment = beside_another_gloo(OTHER_GLOO)});
  for (const Result& result : ranks.wait()) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    expect_text(result.out, {"backend gloo\nsuite passed"});
  }
}

// With LOCKSTEP_LIVENESS=off nobody but Gloo tells of it: an exception of its own, thrown and caught.
TEST(BesideAnotherGloo, ALostRankIsPeerLost) {
  for (const std::string liveness : {"on", "off"}) {
    RankProcesses ranks(2, {.command = {RANK_PROGRAM, "loop", "kill"},
                            .environment = beside_another_gloo(OTHER_GLOO, {{"LOCKSTEP_LIVENESS", liveness}})});
    const auto results = ranks.wait();
    EXPECT_EQ(results[1].signal, SIGKILL) << results[1].err;
    EXPECT_EQ(results[0].exit_code, 3) << results[0].err;
    expect_text(results[0].out, {"backend gloo", "PeerLost: ", "rank 1 (host "});
  }
}

class BesideAnotherMalloc : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Allocators, BesideAnotherMalloc, ::testing::Values(OTHER_MALLOC, OTHER_NEW),
                         [](const auto& instance) { return instance.index == 0 ? "Malloc" : "OperatorNew"; });

TEST_P(BesideAnotherMalloc, NeitherGlooIsMixedWithTheOther) {
  const std::string both = std::string(OTHER_GLOO) + ":" + GetParam();
  RankProcesses refused(2, {.command = {RANK_PROGRAM, "suite"}, .environment = beside_another_gloo(both)});
  for (const Result& result : refused.wait()) {
    EXPECT_EQ(result.exit_code, 1) << result.out;
    expect_text(result.err, {std::string("this process has Gloo in ") + OTHER_GLOO + " already",
                             std::string("beside the malloc of ") + GetParam(),
                             "run without the latter, or with LD_PRELOAD=libgloo.so.0"});
  }
  // What the refusal says to do.
  RankProcesses ranks(
      2, {.command = {RANK_PROGRAM, "groups"}, .environment = beside_another_gloo("libgloo.so.0:" + both)});
  for (const Result& result : ranks.wait()) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    expect_text(result.out, {"backend gloo\n3 groups done"});
  }
}

}  // namespace
}  // namespace lockstep::testing
