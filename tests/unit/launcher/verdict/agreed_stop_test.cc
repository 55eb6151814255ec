// SPDX-License-Identifier: Apache-2.0
#include "launcher/verdict/stop_request.h"

#include <gtest/gtest.h>

#include <csignal>

namespace lockstep::launcher::agreed_stop_test {
namespace {

constexpr ExitStatus kFine;
constexpr ExitStatus kRequeue{.by_signal = false, .value = 42};
constexpr ExitStatus kFailed{.by_signal = false, .value = 1};
constexpr ExitStatus kKilled{.by_signal = true, .value = SIGTERM};

Cause report(int rank) {
  return {.kind = Cause::Kind::stopped,
          .rank = rank,
          .reporter = rank,
          .step = 17,
          .ends_group = false,
          .text = "rank 2 got SIGTERM"};
}

TEST(AgreedStop, ExplainsTheEndOfRanksThatReportedIt) {
  AgreedStop agreed(3, 42);
  EXPECT_FALSE(agreed.explains(1, kRequeue)) << "nobody has reported";
  agreed.heard(report(1));
  EXPECT_TRUE(agreed.explains(1, kRequeue));
  EXPECT_TRUE(agreed.explains(1, kFine));
  EXPECT_FALSE(agreed.explains(1, kFailed)) << "it failed behind it, as at saving";
  EXPECT_FALSE(agreed.explains(1, kKilled));
  EXPECT_FALSE(agreed.explains(0, kRequeue));
  EXPECT_EQ(agreed.describe(), "stopped after 17 steps: rank 2 got SIGTERM");
  agreed.ended(kFine);
  EXPECT_EQ(agreed.exit_code(), 0);
  agreed.ended(kRequeue);
  agreed.ended(kFine);
  EXPECT_EQ(agreed.exit_code(), 42);
}

TEST(AgreedStop, OfAWorldOfOneGoesByTheCode) {
  const AgreedStop agreed(1, 42);
  EXPECT_TRUE(agreed.explains(0, kRequeue));
  EXPECT_FALSE(agreed.explains(0, kFine));
  EXPECT_FALSE(agreed.explains(0, kFailed));
  EXPECT_EQ(agreed.describe(), "stopped");
}

}  // namespace
}  // namespace lockstep::launcher::agreed_stop_test
