// SPDX-License-Identifier: Apache-2.0
// Decides when to report the rank that makes the others wait. Pure; the time is a parameter.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "launcher/observe/step_table.h"

namespace lockstep::launcher {

class SlowRank {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // The least share of the steps' time that is reported on the console; reports also show smaller ones.
  static constexpr double kLeast = 0.1;
  static constexpr std::chrono::minutes kPause{1};   // between two lines
  static constexpr std::chrono::minutes kAgain{10};  // between two lines about the same rank and cause

  // Returns the line that is due, if there is one: "rank 3 (host b) costs 14 % of every step: data".
  std::string look(const std::optional<Straggler>& straggler, Time now);

 private:
  std::optional<Straggler> said_ = {};
  Time said_at_ = {};
};

}  // namespace lockstep::launcher
