// SPDX-License-Identifier: Apache-2.0
// The recent steps of the ranks of a running job, on all hosts, from the totals in their heartbeats
// (trace/rank_totals.h), at a cost that does not grow with the number of steps. Pure; one thread.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "launcher/observe/step_table.h"
#include "runtime/membership/membership_table.h"
#include "runtime/trace/rank_totals.h"

namespace lockstep::launcher {

// Returns the steps between two totals of a rank as a row of their sums; `number` and `step` are the number of steps.
// Returns nullopt if there are none.
std::optional<StepRow> steps_between(const trace::RankTotals& before, const trace::RankTotals& after);

struct LiveRank {
  membership::MemberView member = {};
  std::optional<trace::RankTotals> totals = {};  // totals in its last heartbeat; nullopt before its first step
  std::optional<StepRow> recent = {};            // steps_between() over the last kWindows windows
};

class LiveRun {
 public:
  // A window is the time in which each rank finishes at least one step: half a second, which is the interval of
  // heartbeats, or longer.
  static constexpr std::size_t kWindows = kStragglerSteps;

  // Reads the members of the largest scope, which is the job's. If its ranks have changed, as after a restart, all
  // windows are discarded.
  void look(const std::vector<membership::MemberView>& members);

  std::vector<LiveRank> ranks() const;  // by rank
  // Applies find_straggler() to the windows' mean steps; returns nullopt before there are kWindows, or while a rank is
  // missing.
  std::optional<Straggler> straggler(double least) const;

 private:
  using Totals = std::map<int, trace::RankTotals>;  // by rank
  bool is_of_same_ranks(const std::vector<membership::MemberView>& members) const;

  std::vector<membership::MemberView> members_;
  Totals now_;
  std::deque<Totals> bounds_;  // bounds of the windows, each with all ranks; the last window is still open
};

}  // namespace lockstep::launcher
