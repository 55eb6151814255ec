// SPDX-License-Identifier: Apache-2.0
// The processes of a job: its ranks, what they started, and what outlived the rank that started it.
//
// Main thread only. Makes this process the one that inherits what a rank leaves behind, so that nothing of the job is
// out of its sight.
#pragma once

#include <set>
#include <span>
#include <vector>

#include "launcher/process/guardian.h"
#include "launcher/process/process_table.h"
#include "launcher/watch/rank_process.h"

namespace lockstep::launcher {

class JobTree {
 public:
  // Make it before the first rank is started: children that are there by then are strangers. `guardian` outlives it.
  // Throws SystemError.
  explicit JobTree(Guardian& guardian);

  // To every process of the job: the running ranks' groups, and whatever has left them.
  void signal_all(std::span<const RankProcess> ranks, int signal) const;
  // The processes of the job that run: ranks, and what they started. Once no rank runs, the processes that they left.
  std::vector<ProcessEntry> members() const;

  // After SIGCHLD: frees the ids of children that are not ranks. False if it stopped at a rank, whose turn comes first:
  // call it again once that rank's end has been noted. `guardian_died` is set if the guardian was among them.
  bool reap_others(std::span<RankProcess> ranks, bool& guardian_died);
  // After the guardian's death. False for the fourth, since who kills that many wants none, and where there is no room
  // for a process.
  bool replace_guardian(std::span<const RankProcess> ranks);
  // Notes which ended ranks' process groups are empty, and tells the guardian.
  void release_empty_groups(std::span<RankProcess> ranks) const;

 private:
  Guardian& guardian_;
  int replaced_ = 0;           // guardians
  std::set<pid_t> strangers_;  // children that this process had before it became the launcher
};

}  // namespace lockstep::launcher
