// SPDX-License-Identifier: Apache-2.0
#include "launcher/bisect/first_difference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::launcher::bisect::first_difference_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_message;
using ::testing::HasSubstr;

// A run's folder, of files that ranks have written.
class FirstDifferenceTest : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& folder, int rank, int ranks, const std::string& steps) {
    const std::string header = R"({"format": "lockstep step digests 2", "rank": )" + std::to_string(rank) +
                               R"(, "ranks": )" + std::to_string(ranks) +
                               R"(, "micro_batches": 2, "global_batch": 6, "parameters": ["first", "middle", "last"]})"
                               "\n";
    const std::string name = "rank" + std::to_string(rank) + "-of-" + std::to_string(ranks) + ".jsonl";
    return dir_.write(folder + "/" + name, header + steps).parent_path();
  }

  std::string text_of(const std::vector<std::filesystem::path>& folders) {
    const Recorded recorded = read_digests(folders);
    return as_text(recorded, compare(recorded));
  }

  // Of one rank, and of two whose second one computed `micro_batch` in step 1, and all got `sum`.
  std::string text_of_micro_batch(const std::string& micro_batch, const std::string& sum) {
    const std::string equal =
        R"({"step": 0, "micro_batches": {"0": ["a", "b", "c"], "1": ["a", "b", "c"]}, "sum": ["A", "B", "C"]})"
        "\n";
    const auto one = write("one", 0, 1,
                           equal + R"({"step": 1, "micro_batches": {"0": ["d", "e", "f"], "1": ["g", "h", "i"]}, )"
                                   R"("sum": ["D", "E", "F"]})"
                                   "\n");
    write("two", 0, 2, R"({"step": 1, "micro_batches": {"0": ["d", "e", "f"]}, "sum": )" + sum + "}\n");
    const auto two =
        write("two", 1, 2, R"({"step": 1, "micro_batches": {"1": )" + micro_batch + R"(}, "sum": )" + sum + "}\n");
    return text_of({one, two});
  }

  lockstep::testing::TemporaryFolder dir_;
};

TEST_F(FirstDifferenceTest, EqualStepsAreCounted) {
  EXPECT_EQ(text_of_micro_batch(R"(["g", "h", "i"])", R"(["D", "E", "F"])"),
            "equal: 1 steps, from 1 to 1, of 2 fixed micro-batches and 3 parameters\n");
}

TEST_F(FirstDifferenceTest, NamesTheShardAndWhoComputedItAndTellsBackwardFromForward) {
  expect_message("launcher", "all gradients", text_of_micro_batch(R"(["x", "y", "z"])", R"(["X", "Y", "Z"])"));
  expect_message("launcher", "the first", text_of_micro_batch(R"(["x", "h", "i"])", R"(["X", "E", "F"])"));
  expect_message("launcher", "one in the middle", text_of_micro_batch(R"(["g", "y", "i"])", R"(["D", "Y", "F"])"));
  expect_message("launcher", "a fault of ours", text_of_micro_batch(R"(["g", "h", "i"])", R"(["D", "E", "Z"])"));
}

TEST_F(FirstDifferenceTest, ALastLineThatWasCutOffIsLeftOut) {
  const std::string step = R"({"step": 3, "micro_batches": {"0": ["a", "b", "c"]}, "sum": ["A", "B", "C"]})"
                           "\n";
  const auto one = write("one", 0, 1, step + R"({"step": 4, "sha)");
  const auto two = write("two", 0, 1, step);
  EXPECT_THAT(text_of({one, two}), HasSubstr("equal: 1 steps, from 3 to 3"));
}

TEST_F(FirstDifferenceTest, UnusedParametersSayNothing) {
  const auto micro_batches = [](const std::string& zero, const std::string& one) {
    return R"({"step": 0, "micro_batches": {"0": )" + zero + R"(, "1": )" + one + R"(}, "sum": ["A", "B", "0"]})" +
           "\n";
  };
  const auto one = write("one", 0, 1, micro_batches(R"(["a", "b", "0"])", R"(["c", "d", "0"])"));
  const auto two = write("two", 0, 1, micro_batches(R"(["a", "b", "0"])", R"(["x", "y", "0"])"));
  EXPECT_THAT(text_of({one, two}), HasSubstr("Other micro-batches are equal, so the weights were equal"));
}

TEST_F(FirstDifferenceTest, ShardsThatAreNotThereAreNoFaultOfOurs) {
  const auto one = write("one", 0, 1,
                         R"({"step": 0, "micro_batches": {"0": ["a", "b", "c"], "1": ["d", "e", "f"]}, )"
                         R"("sum": ["A", "B", "C"]})"
                         "\n");
  const auto other = [&](const std::string& sum) {
    return write("two", 0, 2, R"({"step": 0, "micro_batches": {"0": ["a", "b", "c"]}, "sum": )" + sum + "}\n");
  };
  EXPECT_THAT(text_of({one, other(R"(["X", "B", "C"])")}), HasSubstr("Of 2 micro-batches 1 were recorded twice"));
  EXPECT_THAT(text_of({one, other(R"(["A", "B", "C"])")}), HasSubstr("In some step 1 of the micro-batches"));
}

TEST_F(FirstDifferenceTest, AStartGoesOnBehindALineThatWasCutOff) {
  const std::string step = R"({"step": 3, "micro_batches": {"0": ["a", "b", "c"]}, "sum": ["A", "B", "C"]})"
                           "\n";
  const auto one = write("one", 0, 1, step);
  std::ifstream in(one / "rank0-of-1.jsonl");
  const std::string whole(std::istreambuf_iterator<char>(in), {});
  dir_.write("one/rank0-of-1.jsonl", whole + R"({"step": 4, "sha)" + "\n" + whole);
  EXPECT_THAT(text_of({one}), HasSubstr("equal: 1 steps, from 3 to 3"));
  dir_.write("one/rank0-of-1.jsonl", whole + R"({"step": 4, "sha)" + "\n" + step);
  EXPECT_THAT(error_of<CorruptData>([&] { text_of({one}); }), HasSubstr("line 3 was not written by a rank"));
}

TEST_F(FirstDifferenceTest, RefusesWhatCannotBeCompared) {
  const std::string step = R"({"step": 3, "micro_batches": {"0": ["a", "b", "c"]}, "sum": ["A", "B", "C"]})"
                           "\n";
  const std::filesystem::path& folder = dir_;
  const auto one = write("one", 0, 1, step);
  std::string page;
  for (const auto& path : {one, folder, folder / "none"}) {
    page += error_of<InvalidArgument>([&] { text_of({path}); }) + "\n";
  }
  for (const auto& path :
       {write("damaged", 0, 1, "{\"step\": 3}\n"), write("short", 0, 1,
                                                         R"({"step": 3, "micro_batches": {"0": ["a"]}, "sum": ["A"]})"
                                                         "\n")}) {
    page += error_of<CorruptData>([&] { text_of({path}); }) + "\n";
  }
  dir_.write("one/rank0-of-9.jsonl", R"({"format": "lockstep step digests 2", "rank": 0, "ranks": 9, )"
                                     R"("micro_batches": 2, "global_batch": 6, "parameters": ["first", "other"]})"
                                     "\n");
  EXPECT_NE(page.find("LOCKSTEP_STEP_DIGESTS=" + folder.native()), std::string::npos) << page;
  expect_message("launcher", "refusals", page + error_of<InvalidArgument>([&] { text_of({one}); }));
}

}  // namespace
}  // namespace lockstep::launcher::bisect::first_difference_test
