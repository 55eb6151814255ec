// SPDX-License-Identifier: Apache-2.0
// The present steps of the ranks of a running job, from the totals in their heartbeats (trace/rank_totals.h): of all
// hosts, and at a cost that does not grow with the steps. Pure; one thread.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "launcher/observe/step_table.h"
#include "runtime/membership/membership_table.h"
#include "runtime/trace/rank_totals.h"

namespace lockstep::launcher {

// The steps between two totals of a rank as a row of their sums; `number` and `step` are how many there are. Nothing if
// there is none.
std::optional<StepRow> steps_between(const trace::RankTotals& before, const trace::RankTotals& after);

struct LiveRank {
  membership::MemberView member = {};
  std::optional<trace::RankTotals> totals = {};  // of its last heartbeat; nothing before its first step
  std::optional<StepRow> recent = {};            // steps_between(), of the last kWindows windows
};

class LiveRun {
 public:
  // A window is the time in which each rank ends a step or more: half a second, which is a heartbeat, or longer.
  static constexpr std::size_t kWindows = kStragglerSteps;

  // Of several scopes the largest counts, which is the job's. Other ranks than before, as after a restart, begin anew.
  void look(const std::vector<membership::MemberView>& members);

  std::vector<LiveRank> ranks() const;  // by rank
  // As find_straggler() of the windows' mean steps; nothing before there are kWindows, or while a rank is missing.
  std::optional<Straggler> straggler(double least) const;

 private:
  using Totals = std::map<int, trace::RankTotals>;  // by rank
  bool is_of_same_ranks(const std::vector<membership::MemberView>& members) const;

  std::vector<membership::MemberView> members_;
  Totals now_;
  std::deque<Totals> bounds_;  // of the windows, of all ranks each; the last one's end is to come
};

}  // namespace lockstep::launcher
