// SPDX-License-Identifier: Apache-2.0
// The launcher's own findings about ranks: stopped, missing at the start, ended before they joined, slow.
//
// Asks the kernel and the store every kLook. Main thread only.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launcher/observe/live_run.h"
#include "launcher/placement/rank_map.h"
#include "launcher/watch/missing_ranks.h"
#include "launcher/watch/rank_process.h"
#include "launcher/watch/slow_rank.h"
#include "launcher/watch/stopped_ranks.h"
#include "lockstep/job/cause.h"
#include "runtime/membership/membership_table.h"

namespace lockstep::launcher {

class RankWatch {
 public:
  static constexpr std::chrono::milliseconds kLook{250};

  struct Options {
    RankMap hosts = {};       // all hosts of the job
    std::string host = {};    // name of this host
    bool end_stopped = true;  // a stopped rank ends the job (LOCKSTEP_LIVENESS); else it is only reported
    bool names_slow = true;   // reports the rank for which the others wait
    // Returns the members that have registered with the job's store; empty if the store is on another host, or doesn't
    // answer.
    std::function<std::vector<membership::MemberView>()> members = {};
  };
  // A message for people, or the cause for which the job ends.
  struct Finding {
    std::string text = {};
    std::optional<Cause> cause = {};
  };

  explicit RankWatch(Options options);

  // `ranks` are all ranks of this host, started or not. `ended` are the job's ranks that are known to have ended.
  std::vector<Finding> look(std::span<const RankProcess> ranks, std::span<const RankEnd> ended,
                            std::chrono::steady_clock::time_point now);

 private:
  using Members = std::vector<membership::MemberView>;
  void look_for_ended(std::span<const RankEnd> ended, const Members& members, std::vector<Finding>& findings) const;
  void look_for_stopped(const RankProcess& rank, const Members& members, std::vector<Finding>& findings);

  Options options_;
  StoppedRanks stopped_;
  MissingRanks missing_;
  LiveRun live_;
  SlowRank slow_;
};

}  // namespace lockstep::launcher
