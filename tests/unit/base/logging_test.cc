// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/logging.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace lockstep::logging_test {
namespace {

class Logging : public ::testing::Test {
 protected:
  ~Logging() override { set_log_label(""); }
};

template <typename Body>
std::string logged(Body body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

TEST_F(Logging, OneLinePerEventWithLevelAndLabel) {
  EXPECT_EQ(logged([] { log_info("x={}", 3); }), "[lockstep] info: x=3\n");
  set_log_label("rank 2");
  EXPECT_EQ(logged([] { log_warn("careful"); }), "[lockstep rank 2] warning: careful\n");
}

TEST_F(Logging, LabelsAndTextsAreNotPatterns) {
  set_log_label("50% of %v");
  EXPECT_EQ(logged([] { log_line(LogLevel::error, "{} 100%"); }), "[lockstep 50% of %v] error: {} 100%\n");
}

TEST_F(Logging, DisabledLinesFormatNothing) {
  int evaluated = 0;
  const auto text = logged([&] {
    if (log_enabled(LogLevel::debug)) ++evaluated;
    log_debug("{}", evaluated);
  });
  EXPECT_EQ(text, "");
  EXPECT_EQ(evaluated, 0);
}

TEST_F(Logging, ASinkTakesTheLinesUntilItIsGivenUp) {
  std::vector<std::string> taken;
  EXPECT_EQ(logged([&] {
              set_log_sink([&](LogLevel level, std::string_view text) {
                taken.push_back(std::string(name_of(level)) + "|" + std::string(text));
              });
              log_info("{} of {}", 1, 2);
              log_warn("careful");
              log_debug("below the level");
              set_log_sink({});
              log_error("on stderr again");
            }),
            "[lockstep] error: on stderr again\n");
  EXPECT_EQ(taken, (std::vector<std::string>{"info|1 of 2", "warning|careful"}));
}

// The variable is read at the first line of a process: each case is a process of its own.
class LoggingDeathTest : public ::testing::Test {
 protected:
  LoggingDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

[[noreturn]] void log_with_variable(const char* value) {
  if (setenv("LOCKSTEP_LOG_LEVEL", value, 1) != 0) _exit(2);
  log_debug("a debug line");
  log_info("an info line");
  log_info("another");
  log_warn("a warning");
  _exit(0);
}

TEST_F(LoggingDeathTest, VariableChoosesTheLevel) {
  EXPECT_EXIT(log_with_variable("debug"), ::testing::ExitedWithCode(0), "^\\[lockstep\\] debug: a debug line\n");
  EXPECT_EXIT(log_with_variable("warning"), ::testing::ExitedWithCode(0), "^\\[lockstep\\] warning: a warning\n$");
  EXPECT_EXIT(log_with_variable("off"), ::testing::ExitedWithCode(0), "^$");
}

// `warns`: whether lines of that level are written; those below it are not.
[[noreturn]] void end_silently(const char* value, bool warns) {
  if (setenv("LOCKSTEP_LOG_LEVEL", value, 1) != 0) _exit(2);
  log_info("quiet");
  if (!warns) log_error("quiet");
  _exit(!log_enabled(LogLevel::info) && log_enabled(LogLevel::warn) == warns ? 0 : 1);
}

TEST_F(LoggingDeathTest, LevelsBelowTheChosenAreSilent) {
  EXPECT_EXIT(end_silently("warn", true), ::testing::ExitedWithCode(0), "^$");
  EXPECT_EXIT(end_silently("off", false), ::testing::ExitedWithCode(0), "^$");
}

TEST_F(LoggingDeathTest, BadLevelIsReportedOnceAndCountsAsInfo) {
  EXPECT_EXIT(log_with_variable("loud"), ::testing::ExitedWithCode(0),
              "^\\[lockstep\\] warning: LOCKSTEP_LOG_LEVEL='loud' is not a level; .*\n"
              "\\[lockstep\\] info: an info line\n\\[lockstep\\] info: another\n\\[lockstep\\] warning: a warning\n$");
}

}  // namespace
}  // namespace lockstep::logging_test
