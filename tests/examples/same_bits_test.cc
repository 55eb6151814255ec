// SPDX-License-Identifier: Apache-2.0
// The programs of 06_libtorch_same_bits: the same bits of weights, statistics and optimizers on 1, 2 and 3 ranks, and
// when a job of 3 ranks is killed and resumes on 2.
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::same_bits_test {
namespace {

const std::string kLauncher = LOCKSTEP_BIN_DIR "/lockstep";

class SameBits : public ::testing::TestWithParam<const char*> {
 protected:
  std::vector<std::string> job(int ranks, const std::string& folder) const {
    return {kLauncher,
            "run",
            "-n",
            std::to_string(ranks),
            "--",
            LOCKSTEP_BIN_DIR "/06_" + std::string(GetParam()),
            "--steps",
            "24",
            "--snapshot-dir",
            file(folder),
            "--snapshot-every",
            "4"};
  }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  // Returns the snapshot of the last step, which start number `start` of the job saved.
  std::string snapshot(const std::string& name, int start = 1) const {
    return file(name) + "/step-000000000024-g00000" + std::to_string(start);
  }
  void expect_equal(const std::string& a, const std::string& b) const {
    const Result compared = run({kLauncher, "snapshots", "diff", a, b});
    EXPECT_EQ(compared.exit_code, 0) << compared.out << compared.err;
  }

  const TemporaryFolder folder_;
};

TEST_P(SameBits, OnAnyNumberOfRanksAndOverAKill) {
  for (const int ranks : {1, 2}) {
    const Result result = run(job(ranks, std::to_string(ranks)));
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  expect_equal(snapshot("1"), snapshot("2"));
  {
    Process killed({.command = job(3, "3")});
    ASSERT_TRUE(killed.await_output("step 9:"));
    killed.send(SIGKILL);
    EXPECT_NE(killed.wait().exit_code, 0);
  }
  const Result again = run(job(2, "3"));
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.err.find("resumes from step "), again.err.npos) << again.err;
  expect_equal(snapshot("1"), snapshot("3", 2));
}

INSTANTIATE_TEST_SUITE_P(Programs, SameBits, ::testing::Values("gan", "diffusion", "actor_critic"),
                         [](const auto& program) { return std::string(program.param); });

}  // namespace
}  // namespace lockstep::testing::same_bits_test
