// SPDX-License-Identifier: Apache-2.0
// Messages about ranks that ended. Text only; the decisions are RootCause's and StopRequest's.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/process/rank_end.h"
#include "launcher/verdict/root_cause.h"

namespace lockstep::launcher {

// The first failure: one line, and what belongs below it (a hint, the end of the rank's own log).
struct FailureReport {
  std::string message;
  std::vector<std::string> details;
};
// Describes the first failure, which is `rank`. `running` ranks still run, it among them if it has not ended, and
// are ended now.
FailureReport describe_failure(const RootCause& root_cause, const RankFacts& rank, std::chrono::duration<double> age,
                               int running);
// "; ending the other 3 ranks"; empty if there is none.
std::string ending_of_others(int others);

// A rank that ended otherwise than by the signal that the job was asked to stop with.
std::string describe_later_end(const RankEnd& rank, int stop_signal);

// The last line. Of the ranks that ended after the first failure `killed` did so by SIGKILL, `grace` after SIGTERM.
std::string summarise_failure(const RootCause& root_cause, int killed, std::chrono::milliseconds grace);

}  // namespace lockstep::launcher
