// SPDX-License-Identifier: Apache-2.0
// The processes of a job: its ranks, their children, and processes that outlived the rank that started them.
//
// Main thread only. Makes this process a subreaper, which inherits the processes that a rank leaves behind, so that it
// sees every process of the job.
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
  // Make it before the first rank starts: children that exist by then are strangers. `guardian` outlives it. Throws
  // SystemError.
  explicit JobTree(Guardian& guardian);

  // Sends `signal` to every process of the job: the running ranks' groups, and processes that have left them.
  void signal_all(std::span<const RankProcess> ranks, int signal) const;
  // Returns the running processes of the job: ranks and their children; once no rank runs, the processes that they
  // left.
  std::vector<ProcessEntry> members() const;

  // Call it after SIGCHLD: frees the ids of children that are not ranks. Returns false if it stopped at a rank whose
  // end must be noted first: call it again afterwards. Sets `guardian_died` if the guardian was among the children.
  bool reap_others(std::span<RankProcess> ranks, bool& guardian_died);
  // Call it after the guardian's death. Returns false for the fourth one, since a user who kills that many wants none,
  // and if no process can be created.
  bool replace_guardian(std::span<const RankProcess> ranks);
  // Notes the ended ranks whose process groups are empty, and tells the guardian.
  void release_empty_groups(std::span<RankProcess> ranks) const;

 private:
  Guardian& guardian_;
  int replaced_ = 0;           // number of guardians
  std::set<pid_t> strangers_;  // children that this process had before it became the launcher
};

}  // namespace lockstep::launcher
