// SPDX-License-Identifier: Apache-2.0
// `lockstep replay` of 02_char_gpt: the same bits on another number of ranks, the step that differs, and what is
// refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/error_of.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::replay_test {
namespace {

namespace fs = std::filesystem;

const std::string kLauncher = LOCKSTEP_BIN_DIR "/lockstep";

class Replay : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream text(file("text"));
    for (int i = 0; i < 300; ++i) text << (i % 2 == 0 ? "banana " : "cabana\n");
  }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  std::vector<std::string> program(const std::string& learning_rate = "0.003", const std::string& steps = "16") const {
    return {LOCKSTEP_BIN_DIR "/02_char_gpt",
            "--text",
            file("text"),
            "--layers",
            "1",
            "--heads",
            "2",
            "--embd",
            "16",
            "--context",
            "8",
            "--batch",
            "8",
            "--steps",
            steps,
            "--micro-batches",
            "4",
            "--lr",
            learning_rate,
            "--snapshot-dir",
            file("run")};
  }
  Result started(std::vector<std::string> arguments, const std::vector<std::string>& with) const {
    arguments.insert(arguments.begin(), kLauncher);
    arguments.push_back("--");
    arguments.insert(arguments.end(), with.begin(), with.end());
    return run(arguments, {{"LOCKSTEP_STEP_DIGESTS", file("digests")}, {"TMPDIR", file("tmp")}});
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(file("run"))) {
      names.push_back(entry.path().string() + " " + std::to_string(entry.last_write_time().time_since_epoch().count()));
    }
    return names;
  }

  const TemporaryFolder folder_;
};

TEST_F(Replay, SaysWhetherTheBitsAreTheSameAndElseTheStep) {
  fs::create_directory(file("tmp"));
  for (const char* steps : {"4", "16"}) {  // two starts of one training, each of which saves its last step
    const Result original = started({"run", "-n", "2"}, program("0.003", steps));
    ASSERT_EQ(original.exit_code, 0) << original.err;
  }
  const std::string from = file("run/step-000000000004-g000001"), to = file("run/step-000000000016-g000002");
  const std::vector<std::string> before = files();
  for (const char* ranks : {"1", "3"}) {
    const Result same = started({"replay", from, to, "-n", ranks, "--digests", file("digests")}, program());
    EXPECT_EQ(same.exit_code, 0) << same.out << same.err;
    expect_text(same.out,
                {"the same bits: steps 4 to 16 on " + std::string(ranks) + " rank(s) come to", "(1 compared)"});
  }
  const Result other = started({"replay", from, to, "--digests", file("digests")}, program("0.004"));
  EXPECT_EQ(other.exit_code, 1) << other.out << other.err;
  expect_text(other.out, {"NOT the same bits: step 4 is equal, and step 16 differs", "model: tensor 'head.weight'",
                          "step 5 is the first that differs"});
  EXPECT_EQ(files(), before) << "a replay writes nothing into the run's folder";
  EXPECT_TRUE(fs::is_empty(file("tmp"))) << "nor leaves anything behind";
  const Result failed = started({"replay", from, to}, {"/bin/sh", "-c", "exit 7"});
  EXPECT_EQ(failed.exit_code, 2);
  expect_text(failed.err, {"the program failed, with exit code 7, before step 16"});
  const Result without = started({"replay", from, to}, {"/bin/true"});
  EXPECT_EQ(without.exit_code, 2);
  expect_text(without.err, {"the program ended before step 16"});
  const Result reversed = started({"replay", to, from}, program());
  EXPECT_EQ(reversed.exit_code, 2);
  expect_text(reversed.err, {"give an earlier snapshot first"});
  EXPECT_EQ(started({"replay", file("run"), to}, program()).exit_code, 2);
}

}  // namespace
}  // namespace lockstep::testing::replay_test
