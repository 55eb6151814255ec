// SPDX-License-Identifier: Apache-2.0
// LibTorch's jobs in fixed micro-batches, as processes, each with torch's generator to itself: an LSTM with dropout
// between its layers and behind them, Adam, a schedule and clipped gradients has the same bits at any number of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::reproducible_test {
namespace {

std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(ReproducibleJob, OfAnLstmWithDropoutHasTheSameBitsAtAnyNumberOfRanks) {
  const TemporaryFolder folder;
  const auto weights_of = [&](int ranks, const std::string& micro_batches) {
    const std::string name = std::to_string(ranks) + "-" + micro_batches;
    const std::filesystem::path file = folder / (name + ".weights");
    const Result result = run({LOCKSTEP_PROGRAM, "run", "-n", std::to_string(ranks), "--", LIBTORCH_PROGRAM,
                               (folder / name).string(), file.string(), "45", "lstm"},
                              {{"LOCKSTEP_TEST_MICRO_BATCHES", micro_batches},
                               {"LOCKSTEP_STEP_DIGESTS", (folder / (name + ".digests")).string()}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return bytes_of(file);
  };
  const std::string alone = weights_of(1, "6");
  ASSERT_FALSE(alone.empty());
  for (const int ranks : {2, 3}) EXPECT_TRUE(weights_of(ranks, "6") == alone) << ranks << " ranks";
  EXPECT_FALSE(weights_of(2, "4") == alone) << "another number of micro-batches is another program";

  const auto bisect = [&](const std::string& one, const std::string& other) {
    return run({LOCKSTEP_PROGRAM, "bisect-step", (folder / (one + ".digests")).string(),
                (folder / (other + ".digests")).string()});
  };
  const Result equal = bisect("1-6", "3-6");
  EXPECT_EQ(equal.exit_code, 0) << equal.err;
  EXPECT_THAT(equal.out, ::testing::HasSubstr("of 6 fixed micro-batches"));
  const Result of_another = bisect("1-6", "2-4");
  EXPECT_EQ(of_another.exit_code, 2);
  EXPECT_THAT(of_another.err, ::testing::HasSubstr("their steps can't be compared"));
}

}  // namespace
}  // namespace lockstep::testing::reproducible_test
