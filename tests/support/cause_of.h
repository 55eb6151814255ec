// SPDX-License-Identifier: Apache-2.0
// The cause of what a call throws, and of what all ranks throw, as data; and a message with what differs from run to
// run taken out.
#pragma once

#include <gtest/gtest.h>

#include <mutex>
#include <regex>
#include <span>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/job/cause.h"
#include "tests/support/error_of.h"

namespace lockstep::testing {

// An empty one, and the test fails, if that is no Expected or has no cause.
template <typename Expected, typename Call>
Cause cause_of(Call&& call) {
  const auto error = thrown_by<Expected>(std::forward<Call>(call));
  if (!error) return {};
  if (error->cause() != nullptr) return *error->cause();
  ADD_FAILURE() << "an error without a cause: " << error->what();
  return {};
}

// As for the error that has it.
inline void expect_cause(const Cause& cause, const Cause& wanted) { expect_cause(make_error<Error>(cause), wanted); }

// The ranks have one cause, text and all.
inline void expect_one_cause(std::span<const Cause> causes, const Cause& wanted) {
  for (const Cause& cause : causes) EXPECT_EQ(encode(cause), encode(causes.front()));
  expect_cause(causes.front(), wanted);
}

// "rank 2 (host n1, pid 4711)" becomes "rank 2 (...)", and a time that passed "T s".
inline std::string golden(const std::string& text) {
  // Ranks are threads, and what compiles an expression fills a cache of the locale without a lock.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const std::string named = std::regex_replace(text, std::regex(R"(\(host [^()]*, pid \d+\))"), "(...)");
  return std::regex_replace(named, std::regex(R"(\belapsed \S+ s\b)"), "elapsed T s");
}

// The same of a cause whose whole text, so, is `wanted`'s.
inline void expect_golden(const Cause& cause, const Cause& wanted) {
  EXPECT_EQ(golden(cause.text), wanted.text);
  Cause data = wanted;
  data.text.clear();
  expect_cause(cause, data);
}

}  // namespace lockstep::testing
