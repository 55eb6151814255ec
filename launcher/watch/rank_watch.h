// SPDX-License-Identifier: Apache-2.0
// Findings of the launcher itself about ranks: stopped, missing at the start, ended before they came to it, slow.
//
// Asks the kernel and the store, every kLook. Main thread only.
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
    RankMap hosts = {};       // of the job
    std::string host = {};    // this one's name
    bool end_stopped = true;  // a stopped rank ends the job (LOCKSTEP_LIVENESS); else it is only said
    bool names_slow = true;   // says which rank the others wait for
    // Returns the members that have registered with the job's store; nothing if it is another host's, or doesn't
    // answer.
    std::function<std::vector<membership::MemberView>()> members = {};
  };
  // A line for people, or the cause for which the job ends.
  struct Finding {
    std::string text = {};
    std::optional<Cause> cause = {};
  };

  explicit RankWatch(Options options);

  // `ranks`: all of this host, started or not yet. `ended`: those of the job that have ended, as far as is known.
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
