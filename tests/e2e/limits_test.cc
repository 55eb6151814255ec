// SPDX-License-Identifier: Apache-2.0
// Ranks under limits of the shell, the container or the scheduler: one line each that names the limit, no signal, no
// hang.
#include <gtest/gtest.h>

#include "tests/e2e/launch.h"
#include "tests/support/leftovers.h"

namespace lockstep::e2e::limits_test {
namespace {

struct Limit {
  std::string name;
  std::string shell;  // what sets it
  std::string says;   // part of a rank's last word
};
void PrintTo(const Limit& limit, std::ostream* out) { *out << limit.shell; }

class Limits : public ::testing::TestWithParam<Limit> {};

INSTANTIATE_TEST_SUITE_P(Ranks, Limits,
                         ::testing::Values(Limit{"EightOpenFiles", "ulimit -n 8", "'ulimit -n' allows 8"},
                                           Limit{"TenOpenFiles", "ulimit -n 10", "'ulimit -n' allows 10"},
                                           Limit{"NoFiles", "ulimit -f 0", "'ulimit -f unlimited'"},
                                           Limit{"SmallFiles", "ulimit -f 100", "'ulimit -f unlimited'"},
                                           // Each thread wants 60 GB of addresses for its stack, and 4 GB are allowed.
                                           Limit{"NoThreads", "ulimit -s 60000000 && ulimit -v 4000000",
                                                 "starting a thread: "}),
                         [](const auto& test) { return test.param.name; });

TEST_P(Limits, AreNamedByTheRankThatMeetsThem) {
  const testing::Footprint footprint;
  Process launcher(
      {.command = run_command({"-n", "2", "--grace", "20", "--backend", "shm"}, "sh",
                              {"-c", GetParam().shell + " && exec \"$0\" ignore:15 init sum", RANK_PROGRAM})});
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  const std::string words = last_word_of_rank(result, 0) + last_word_of_rank(result, 1);
  EXPECT_TRUE(contains(words, GetParam().says)) << result.err;
  EXPECT_FALSE(contains(result.err, "terminate called")) << result.err;
  EXPECT_EQ(footprint.left_after(testing::leftover_deadline()), "");
}

}  // namespace
}  // namespace lockstep::e2e::limits_test
