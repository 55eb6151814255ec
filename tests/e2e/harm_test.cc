// SPDX-License-Identifier: Apache-2.0
// Each way in which a rank can come to harm, to rank 0 and to another one, over shared memory and over TCP: the rows
// of docs/PROMISES.md for one host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <tuple>

#include "tests/e2e/launch.h"
#include "tests/support/leftovers.h"
#include "tests/support/sanitized.h"
#include "tests/support/source_line.h"

namespace lockstep::e2e::harm_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

struct Harm {
  std::string name;
  std::string action;  // of tests/e2e/programs/e2e_rank.cc
  int exit_code;
  std::string verdict;
  Words flags = {};
};
void PrintTo(const Harm& harm, std::ostream* out) { *out << harm.name; }

const std::vector<Harm> kHarms = {
    {"Stop", "raise:19", 75, "it did not continue: rank ", {"--liveness", "on"}},
    {"Kill", "kill", 128 + SIGKILL, "it was killed by signal 9 (SIGKILL)"},
    {"Segfault", "raise:11", 128 + SIGSEGV, "it was killed by signal 11 (SIGSEGV)"},
    {"ExitWithZero", "exit:0", 1, "it exited with code 0 while the others still needed it"},
    {"ExitWithSeven", "exit:7", 7, "it exited with code 7"},
    {"Exception", "throw:lost my way", 128 + SIGABRT, "it was killed by signal 6 (SIGABRT)"},
    {"EndlessLoop", "hang", 75, "it did not continue: rank ", {"--hang-timeout", "2"}},
};

class HarmTo : public ::testing::TestWithParam<std::tuple<std::string, int, Harm>> {
 protected:
  std::string backend() const { return std::get<0>(GetParam()); }
  int victim() const { return std::get<1>(GetParam()); }
};

std::vector<std::string> backends() { return {"shm", "tcp"}; }

INSTANTIATE_TEST_SUITE_P(Cells, HarmTo,
                         ::testing::Combine(::testing::ValuesIn(backends()), ::testing::Values(0, 1),
                                            ::testing::ValuesIn(kHarms)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_rank" + std::to_string(std::get<1>(test.param)) + "_" +
                                  std::get<2>(test.param).name;
                         });

TEST_P(HarmTo, OneRankIsNamedAndNothingIsLeft) {
  const Harm& harm = std::get<2>(GetParam());
  if (testing::kSanitized && harm.exit_code == 128 + SIGSEGV) {
    GTEST_SKIP() << "a sanitizer handles SIGSEGV and SIGABRT itself";
  }
  const testing::Footprint footprint;
  const std::string rank = std::to_string(victim());
  const Words actions = {"backend:" + backend(), "init", "sum", harm.action + "@" + rank, "loop"};
  const auto result = testing::run(run_command(joined({"-n", "3", "--grace", "3"}, harm.flags), RANK_PROGRAM, actions));
  EXPECT_EQ(result.exit_code, harm.exit_code) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("lockstep run: rank " + rank + " (host "),
                                HasSubstr("lockstep run: rank " + rank + " failed first: " + harm.verdict)));
  for (const int other : {0, 1, 2}) {
    if (other == victim()) continue;
    EXPECT_FALSE(contains(result.err, "lockstep run: rank " + std::to_string(other) + " (host ")) << result.err;
  }
  if (harm.action == "hang" && (testing::has_program("gdb") || testing::has_program("eu-stack"))) {
    EXPECT_THAT(result.err,
                ContainsRegex("\n  where it is:\n(  \\| [^\n]*\n)*  \\| #[0-9]+ [^\n]*" + testing::line_of_hang()));
  }
  EXPECT_EQ(footprint.left_after(testing::leftover_deadline()), "");
}

// What it does for all, such as saving weights: the others hear of it, and may end first.
TEST(HarmToAll, OfRankZerosFullDiskOverTcpOrSharedMemory) {
  for (const auto& backend : backends()) {
    const auto result =
        testing::run(run_command({"-n", "3"}, RANK_PROGRAM, {"backend:" + backend, "init", "sum", "rank0:28", "loop"}));
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("lockstep run: rank 0 failed first: it exited with code 1"),
                                  HasSubstr("No space left on device")));
  }
}

}  // namespace
}  // namespace lockstep::e2e::harm_test
