// What the launcher says of ranks that ended. Text only; the decisions are Verdict's and StopRequest's.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/rank_process.h"
#include "runtime/base/cause.h"

namespace lockstep::launcher {

// "1 rank", "3 ranks".
std::string count_of(std::int64_t count, std::string_view noun, std::string_view plural_ending = "s");

// The first failure: one line, and what belongs below it (a hint, the end of the rank's own log).
struct FailureReport {
  std::string message;
  std::vector<std::string> details;
};
// `process` has ended. `others` ranks run still and are ended now.
FailureReport describe_failure(const RankProcess& process, const std::string& host, std::chrono::duration<double> age,
                               int others);

// The same of a rank that is named while it runs.
FailureReport describe_failure(const Cause& cause, int others);

// What of the ranks' output did not get into its files; empty: all of it did.
std::string describe_lost_output(std::span<const RankProcess> ranks);

// A rank that ended otherwise than by the signal that the job was asked to stop with.
std::string describe_later_end(const RankProcess& process, const std::string& host, int stop_signal);

// The last line, also of a rank that was named for `cause` while it ran. `others` ranks ended after the first failure,
// `killed` of them by SIGKILL, `grace` after SIGTERM.
std::string summarise_failure(const RankProcess& first, const std::optional<Cause>& cause, int others, int killed,
                              std::chrono::milliseconds grace);
// The job's, for that rank: its own, or 75 of one that was named while it ran.
int failure_exit_code(const RankProcess& first, const std::optional<Cause>& cause);

}  // namespace lockstep::launcher
