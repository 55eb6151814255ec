// SPDX-License-Identifier: Apache-2.0
// The tables of the tutorial, line by line, and weights that do not depend on the number of ranks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/nn/nn.h"
#include "lockstep/train/weights.h"
#include "tests/multirank/compare.h"
#include "tests/support/error_of.h"
#include "tests/support/rank_processes.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::tutorial_test {
namespace {

namespace fs = std::filesystem;

const std::string kTutorial = LOCKSTEP_BIN_DIR "/01_tutorial";

std::string inside(int rows) {
  const std::string n = std::to_string(rows);
  return "In Model: input size [" + n + ", 5] output size [" + n + ", 2]\n";
}

// Rows of each rank in a batch of 30, and in the last one of 10.
struct Table {
  std::string greeting;
  std::vector<int> thirty;
  std::vector<int> ten;

  std::string lines() const {
    std::string text = greeting;
    for (int batch = 0; batch < 4; ++batch) {
      for (const int rows : batch < 3 ? thirty : ten) text += inside(rows);
      text += batch < 3 ? "Outside: input size [30, 5] output_size [30, 2]\n"
                        : "Outside: input size [10, 5] output_size [10, 2]\n";
    }
    return text;
  }
};

const std::map<int, Table> kTables = {
    {1, {"", {30}, {10}}},
    {2, {"Let's use 2 ranks!\n", {15, 15}, {5, 5}}},
    {3, {"Let's use 3 ranks!\n", {10, 10, 10}, {4, 4, 2}}},
    {8, {"Let's use 8 ranks!\n", {4, 4, 4, 4, 4, 4, 4, 2}, {2, 2, 2, 2, 2}}},
};

class Tutorial : public ::testing::Test {
 protected:
  static Values weights(const fs::path& file) {
    struct Model : nn::Module {
      nn::Linear fc = register_module("fc", nn::Linear(5, 2));
    } model;
    load_weights(file, model);
    return weights_of(model);
  }

  const TemporaryFolder folder_;
};

TEST_F(Tutorial, LinesAndWeightsForOneTwoThreeAndEightRanks) {
  Values wanted;
  for (const auto& [ranks, table] : kTables) {
    const std::string out = (folder_ / std::to_string(ranks)).string();
    RankProcesses job(ranks, {.command = {kTutorial, "--out", out}});
    const std::vector<Result> results = job.wait();
    for (int rank = 0; rank < ranks; ++rank) {
      const Result& result = results[static_cast<std::size_t>(rank)];
      EXPECT_EQ(result.exit_code, 0) << result.err;
      EXPECT_EQ(result.out, rank == 0 ? table.lines() : "") << "rank " << rank << " of " << ranks;
    }
    if (ranks == 1) {
      wanted = weights(out);
    } else {
      expect_close(weights(out), wanted, std::to_string(ranks) + " ranks");
    }
  }
}

TEST_F(Tutorial, AloneWithoutAnyVariableItIsTheTableOfOne) {
  const Result result = run({kTutorial});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, kTables.at(1).lines());
}

TEST_F(Tutorial, UnderLockstepRunTheLinesComeFromRankZero) {
  const Result result = run({LOCKSTEP_BIN_DIR "/lockstep", "run", "--nproc-per-node", "3", kTutorial});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::string bare;
  std::string rest = result.out;
  for (std::size_t end = rest.find('\n'); end != std::string::npos; rest.erase(0, end + 1), end = rest.find('\n')) {
    EXPECT_TRUE(rest.starts_with("[rank 0] ")) << rest.substr(0, end);
    bare += rest.substr(9, end - 8);
  }
  EXPECT_EQ(bare, kTables.at(3).lines());
}

TEST_F(Tutorial, BadFlagsAndFoldersAreSaidInALine) {
  const Result flag = run({kTutorial, "--fast"});
  EXPECT_NE(flag.exit_code, 0);
  expect_text((flag.out + flag.err), {"--fast"});
  const Result folder = run({kTutorial, "--out", (folder_ / "none" / "w").string()});
  EXPECT_EQ(folder.exit_code, 1);
  expect_text(folder.err, {"01_tutorial: writing '" + (folder_ / "none" / "w").string() + "': the folder"});
}

}  // namespace
}  // namespace lockstep::testing::tutorial_test
