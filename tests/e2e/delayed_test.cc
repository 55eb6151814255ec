// SPDX-License-Identifier: Apache-2.0
// A rank that is late in its data, its forward or its backward since a step that is known: the launcher says so while
// the job runs, and so does its report, on every backend and for LibTorch.
#include <tuple>

#include "tests/e2e/delayed_rank.h"
#include "tests/e2e/training_job.h"
#include "tests/support/error_of.h"

namespace lockstep::e2e::delayed_test {
namespace {

using testing::DelayedRank;
using testing::run;

// By backend, or libtorch, and phase.
class Delayed : public TrainingJob, public ::testing::WithParamInterface<std::tuple<std::string, std::string>> {
 protected:
  static std::string backend() { return std::get<0>(GetParam()); }
  static std::string phase() { return std::get<1>(GetParam()); }
  static std::string why_not() {
    if (backend() == "nccl") return WHY_NO_NCCL;
    return backend() == "libtorch" ? WHY_NO_LIBTORCH : "";
  }
  Words command() const {
    if (backend() != "libtorch") return {DELAYED_PROGRAM, backend(), phase()};
    return {LIBTORCH_PROGRAM, file("snapshots"), file("weights"), "1000000"};
  }
  static Variables environment() {
    if (backend() == "libtorch") return {{"LOCKSTEP_TEST_DELAY", phase()}};
    if (backend() != "nccl") return {};
    return {{"LOCKSTEP_PLUGIN_PATH", FAKE_PLUGINS}, {"LOCKSTEP_NCCL_LIB", FAKE_NCCL}, {"LOCKSTEP_FAKE_GPUS", "2"}};
  }
};

TEST_P(Delayed, IsNamedWithItsCauseWhileItRunsAndInTheReport) {
  if (!why_not().empty()) GTEST_SKIP() << why_not();
  Process launcher({.command = job(2, command(), {"--log-dir", file("logs")}), .environment = environment()});
  // The sampler's first batches were read before step 20.
  const DelayedRank late{.phase = phase(), .first_step = 24};
  ASSERT_TRUE(launcher.await_output(testing::line_about(late)));
  testing::expect_text(launcher.err(), {"lockstep run: rank 1 (host "});
  launcher.send(SIGTERM);
  launcher.wait();
  const auto report = run({LOCKSTEP_PROGRAM, "report", file("logs")});
  ASSERT_EQ(report.exit_code, 0) << report.err;
  testing::expect_text(report.out, {"rank 1 (host ", testing::line_about(late)});
  testing::expect_in_report(file("logs/report.jsonl"), late);
}

INSTANTIATE_TEST_SUITE_P(Everywhere, Delayed,
                         ::testing::Combine(::testing::Values("shm", "tcp", "nccl", "libtorch"),
                                            ::testing::Values("data", "forward", "backward")),
                         [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param); });

}  // namespace
}  // namespace lockstep::e2e::delayed_test
