// SPDX-License-Identifier: Apache-2.0
#include "launcher/verdict/stop_request.h"

#include <gtest/gtest.h>

#include <csignal>

#include "runtime/job/exit_code.h"

namespace lockstep::launcher::stop_request_test {
namespace {

using namespace std::chrono_literals;
using Step = StopRequest::Step;

TEST(StopRequest, IsPassedOnThenInsistedOnOnce) {
  StopRequest stop(0ns);
  EXPECT_EQ(stop.signal(), 0);
  EXPECT_EQ(stop.asked(SIGTERM), Step::pass_on);
  EXPECT_EQ(stop.asked(SIGINT), Step::kill) << "of any kind";
  EXPECT_EQ(stop.asked(SIGINT), Step::ignore);
  EXPECT_EQ(stop.signal(), SIGTERM) << "the exit code is that of the first";
  EXPECT_EQ(stop.count(), 3);
}

TEST(StopRequest, TwoInOneGoAreOne) {
  StopRequest stop(1h);
  EXPECT_EQ(stop.asked(SIGTERM), Step::pass_on);
  EXPECT_EQ(stop.asked(SIGTERM), Step::ignore);
  EXPECT_EQ(stop.asked(SIGHUP), Step::ignore);
}

TEST(StopRequest, ExplainsWhatItBringsAbout) {
  const ExitStatus fine;
  const ExitStatus by_sigterm{.by_signal = true, .value = SIGTERM};
  const ExitStatus said_sigterm{.by_signal = false, .value = 128 + SIGTERM};
  const ExitStatus heard{.by_signal = false, .value = kExitPeerLost};
  const ExitStatus failed{.by_signal = false, .value = 3};
  const ExitStatus crashed{.by_signal = true, .value = SIGSEGV};
  const ExitStatus killed{.by_signal = true, .value = SIGKILL};
  StopRequest stop(0ns);
  for (const auto& ending : {fine, by_sigterm, heard}) EXPECT_FALSE(stop.explains(ending)) << "nobody has asked";
  stop.asked(SIGTERM);
  for (const auto& ending : {fine, by_sigterm, said_sigterm, heard}) EXPECT_TRUE(stop.explains(ending));
  for (const auto& ending : {failed, crashed, killed}) EXPECT_FALSE(stop.explains(ending)) << ending.describe();
  stop.asked(SIGTERM);
  EXPECT_TRUE(stop.explains(killed)) << "by the launcher";
  EXPECT_FALSE(stop.explains(crashed));
}

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

TEST(AgreedStop, ExplainsTheEndOfRanksAfterAReportOfOne) {
  AgreedStop agreed(3, 42);
  EXPECT_FALSE(agreed.explains(kRequeue)) << "nobody has reported";
  agreed.heard(report(1));
  EXPECT_TRUE(agreed.explains(kRequeue));
  EXPECT_TRUE(agreed.explains(kFine));
  EXPECT_FALSE(agreed.explains(kFailed)) << "it failed after the stop, as at saving";
  EXPECT_FALSE(agreed.explains(kKilled));
  EXPECT_FALSE(agreed.has_reported(0)) << "its end may be known before its report";
  EXPECT_EQ(agreed.describe(), "stopped after 17 steps: rank 2 got SIGTERM");
  agreed.ended(kFine);
  EXPECT_EQ(agreed.exit_code(), 0);
  agreed.ended(kRequeue);
  agreed.ended(kFine);
  EXPECT_EQ(agreed.exit_code(), 42);
}

TEST(AgreedStop, OfAWorldOfOneGoesByTheCode) {
  const AgreedStop agreed(1, 42);
  EXPECT_TRUE(agreed.explains(kRequeue));
  EXPECT_FALSE(agreed.explains(kFine));
  EXPECT_FALSE(agreed.explains(kFailed));
  EXPECT_EQ(agreed.describe(), "stopped");
}

}  // namespace
}  // namespace lockstep::launcher::stop_request_test
