// SPDX-License-Identifier: Apache-2.0
// 04_libtorch_mnist with snapshots: stopped and started again it ends as one that was never stopped.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::mnist_test {
namespace {

const std::string kLauncher = LOCKSTEP_BIN_DIR "/lockstep";

class MnistJob : public ::testing::Test {
 protected:
  std::vector<std::string> job(const std::string& name) const {
    return {
        kLauncher,          "run", "-n", "2", "--", LOCKSTEP_BIN_DIR "/04_libtorch_mnist", "--snapshot-dir", file(name),
        "--snapshot-every", "20"};
  }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  // To the end of three epochs, on a machine that has much else to do.
  static Result train(std::vector<std::string> command) {
    return run_process({.command = std::move(command)}, Deadline::after(std::chrono::minutes(2)));
  }
  // Of its last step.
  std::string snapshot(const std::string& name) const { return file(name) + "/step-000000000282"; }
  // What follows the last `mark`.
  static std::string last(const std::string& text, const std::string& mark) {
    const std::size_t at = text.rfind(mark);
    EXPECT_NE(at, text.npos) << text;
    return at == text.npos ? "" : text.substr(at, text.find('\n', at) - at);
  }

  const TemporaryFolder folder_;
};

TEST_F(MnistJob, StoppedAndStartedAgainEndsAsOneThatWasNot) {
  const Result undisturbed = train(job("undisturbed"));
  ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.err;
  {
    Process asked({.command = job("stopped")});
    ASSERT_TRUE(asked.await_output("is saved in"));
    asked.send(SIGTERM);
    const Result result = asked.wait();
    EXPECT_EQ(result.exit_code, 75) << result.err;
    EXPECT_EQ(result.out.find("epoch 3"), result.out.npos) << "it had ended before it was asked";
  }
  const Result again = train(job("stopped"));
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.err.find("resumes from step "), again.err.npos) << again.err;
  EXPECT_EQ(last(again.out, "test loss"), last(undisturbed.out, "test loss"));
  const Result compared =
      run({kLauncher, "snapshots", "diff", snapshot("undisturbed") + "-g000001", snapshot("stopped") + "-g000002"});
  EXPECT_EQ(compared.exit_code, 0) << compared.out << compared.err;
}

TEST_F(MnistJob, HasTheSameBitsAtAnyNumberOfRanks) {
  for (const std::string ranks : {"1", "2"}) {
    const Result result = train({kLauncher, "run", "-n", ranks, "--", LOCKSTEP_BIN_DIR "/04_libtorch_mnist",
                                 "--micro-batches", "4", "--snapshot-dir", file(ranks)});
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  const Result compared = run({kLauncher, "snapshots", "diff", snapshot("1") + "-g000001", snapshot("2") + "-g000001"});
  EXPECT_EQ(compared.exit_code, 0) << compared.out << compared.err;
}

TEST_F(MnistJob, ABadFlagIsRefused) {
  const Result refused =
      run({LOCKSTEP_BIN_DIR "/04_libtorch_mnist", "--snapshot-dir", file("run"), "--snapshot-every", "0"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_NE(refused.err.find("--snapshot-every"), refused.err.npos) << refused.err;
}

}  // namespace
}  // namespace lockstep::testing::mnist_test
