// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/log_relay.h"

#include <gtest/gtest.h>

#include <thread>

#include "runtime/net/stream.h"

namespace lockstep::launcher::log_relay_test {
namespace {

using Lines = std::vector<std::string>;

bool readable(const LogRelay& relay) { return net::wait_readable(relay.fd(), Deadline::after({})); }

TEST(LogRelay, HandsOverWhatAnotherThreadLogs) {
  LogRelay relay;
  EXPECT_FALSE(readable(relay));
  std::thread([] {
    log_warn("client {} refused", "127.0.0.1:4");
    log_info("second");
  }).join();
  EXPECT_TRUE(readable(relay));
  EXPECT_EQ(relay.take(), (Lines{"warning: client 127.0.0.1:4 refused", "info: second"}));
  EXPECT_FALSE(readable(relay));
  EXPECT_EQ(relay.take(), Lines{});
}

TEST(LogRelay, KeepsSoManyAndCountsTheRest) {
  LogRelay relay;
  for (std::size_t i = 0; i < LogRelay::kMostLines + 7; ++i) log_info("line {}", i);
  const auto lines = relay.take();
  ASSERT_EQ(lines.size(), LogRelay::kMostLines + 1);
  EXPECT_EQ(lines.back(), "warning: 7 more lines of the log were dropped: they came faster than they are read");
  log_info("next");
  EXPECT_EQ(relay.take(), Lines{"info: next"});
}

TEST(LogRelay, WhatNobodyTookGoesToStderr) {
  ::testing::internal::CaptureStderr();
  {
    LogRelay relay;
    log_warn("late");
  }
  log_warn("after");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "lockstep run: warning: late\n[lockstep] warning: after\n");
}

}  // namespace
}  // namespace lockstep::launcher::log_relay_test
