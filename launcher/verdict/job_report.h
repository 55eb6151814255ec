// SPDX-License-Identifier: Apache-2.0
// Messages about ranks that ended. Text only; RootCause and StopRequest make the decisions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/process/rank_end.h"
#include "launcher/verdict/root_cause.h"

namespace lockstep::launcher {

// The first failure: one line, and the details below it (a hint, the end of the rank's own log).
struct FailureReport {
  std::string message;
  std::vector<std::string> details;
};
// Describes the first failure, which is `rank`. `running` ranks still run, including the failed one if it has not
// ended, and are being ended.
FailureReport describe_failure(const RootCause& root_cause, const RankFacts& rank, std::chrono::duration<double> age,
                               int running);
// Returns "; ending the other 3 ranks"; empty if there are none.
std::string ending_of_others(int others);

// Describes a rank whose ending differs from the signal with which the job was asked to stop.
std::string describe_later_end(const RankEnd& rank, int stop_signal);

// Returns the last line, which names the cause again: people paste it without the others. `rank` is the first failure.
// Of the ranks that ended after it, `killed` were ended by SIGKILL, `grace` after SIGTERM.
std::string summarise_failure(const RootCause& root_cause, const RankFacts& rank, int killed,
                              std::chrono::milliseconds grace);

}  // namespace lockstep::launcher
