// SPDX-License-Identifier: Apache-2.0
// The ranks for which others wait at the start: those that have not registered with the job's store while others have.
//
// Reported every kInterval as long as the wait lasts, but never for programs whose ranks do not register. Pure except
// for describe_missing(); the time is a parameter. One thread.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launcher/placement/rank_map.h"
#include "launcher/watch/rank_process.h"
#include "runtime/base/observed_clock.h"
#include "runtime/membership/membership_table.h"

namespace lockstep::launcher {

class MissingRanks {
 public:
  static constexpr std::chrono::seconds kInterval{10};

  struct Report {
    int present = 0;  // number of ranks that wait
    std::vector<int> missing = {};
    std::chrono::nanoseconds waited{0};  // since the first of them registered
  };

  // `ranks` were started. `longest_gap` is the most that the time between two looks counts.
  MissingRanks(int ranks, std::chrono::nanoseconds longest_gap) : ranks_(ranks), clock_(longest_gap) {}

  // Returns the report that is due now, if there is one. A group of only some of the ranks does not count as the job's
  // start.
  std::optional<Report> look(ObservedClock::Time now, std::span<const membership::MemberView> members);

 private:
  struct Wait {
    std::chrono::nanoseconds since{0};
    std::chrono::nanoseconds said{0};
  };
  int ranks_;
  ObservedClock clock_;
  std::map<std::string, Wait, std::less<>> waits_;  // by scope
};

// Returns those of `ended`, ranks whose processes have ended, that have not registered in a scope where others wait:
// they will never join.
std::vector<int> ended_before_they_came(int world_size, std::span<const membership::MemberView> members,
                                        std::span<const int> ended);

// Returns one line: the ranks that wait, for how long, and for each missing rank its process and the state that the
// kernel reports, or its host if that is another one. `ranks` are this host's; `ended` are those of the job that have
// ended.
std::string describe_missing(const MissingRanks::Report& report, const RankMap& hosts,
                             std::span<const RankProcess> ranks, std::span<const RankEnd> ended);

}  // namespace lockstep::launcher
