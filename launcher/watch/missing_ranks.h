// SPDX-License-Identifier: Apache-2.0
// The ranks that are waited for at the start: those that have not registered with the job's store while others have.
//
// Said every kInterval as long as it lasts, and never of programs none of whose ranks registers. Pure but for
// describe_missing(); the time is passed in. One thread.
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
    int present = 0;  // ranks that wait
    std::vector<int> missing = {};
    std::chrono::nanoseconds waited{0};  // since the first of them registered
  };

  // `ranks` were started. `longest_gap`: what counts at most of the time between two looks.
  MissingRanks(int ranks, std::chrono::nanoseconds longest_gap) : ranks_(ranks), clock_(longest_gap) {}

  // The report that is due now, if one is. A group of only some of the ranks does not count as the job's start.
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

// Those of `ended`, ranks whose processes have ended, that have not registered in a scope where others are present and
// wait: they will not come.
std::vector<int> ended_before_they_came(int world_size, std::span<const membership::MemberView> members,
                                        std::span<const int> ended);

// One line: who waits how long, and of each of the missing its process and what the kernel says that it does, or its
// host where that is another one. `ranks` are this host's, `ended` those of the job that have ended.
std::string describe_missing(const MissingRanks::Report& report, const RankMap& hosts,
                             std::span<const RankProcess> ranks, std::span<const RankEnd> ended);

}  // namespace lockstep::launcher
