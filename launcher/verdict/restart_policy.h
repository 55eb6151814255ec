// SPDX-License-Identifier: Apache-2.0
// Whether a job whose ranks have ended is started again, and when. One for all starts of a job. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "launcher/placement/rank_map.h"

namespace lockstep::launcher {

// The end of one start of a job's ranks.
struct StartEnd {
  enum class Kind {
    over,       // all ended with 0, or as they were asked to: nothing to start again
    failed,     // a rank failed
    host_lost,  // a host with all of its ranks
    resized,    // the ranks have stopped so that a host may come in
  };
  Kind kind = Kind::over;
  int exit_code = 0;
  std::chrono::nanoseconds ran = {};  // since the ranks were started
  bool reports_steps = false;         // a rank has begun a step (lockstep's DistributedDataParallel, or a Reducer)
  std::int64_t steps_done = 0;  // by all starts, as the ranks count them: Snapshots::restore() continues the count
  // The host of the rank that failed first, where the job may continue without that host.
  std::optional<HostSlots> culprit = {};
};

class RestartPolicy {
 public:
  // Starts in a row without a new step after which the job ends, or continues without the host whose ranks failed first
  // in each of them.
  static constexpr int kMostStalled = 3;
  // A program that reports no steps is started again if it ran so long.
  static constexpr std::chrono::seconds kLongEnough{30};
  // Pause before a start that follows one without a new step; doubles with each, up to the second.
  static constexpr std::chrono::milliseconds kFirstPause{1000};
  static constexpr std::chrono::milliseconds kMostPause{60'000};

  // `most`: restarts after failures. `may_resize`: hosts may come and go, which uses up none.
  RestartPolicy(int most, bool may_resize) : most_(most), may_resize_(may_resize) {}

  struct Decision {
    std::optional<std::chrono::milliseconds> pause = {};  // before the next start; nothing: the job is over
    int exit_code = 0;                                    // if it is
    std::string text = {};                                // for people; empty: there is nothing to say
    std::optional<HostSlots> left_out = {};               // a host that is part of no start any more
  };
  Decision decide(const StartEnd& end);

 private:
  Decision refuse(const StartEnd& end, std::string why) const;
  // Starts in a row without a new step, up to this one, in which this one's culprit was the culprit.
  void count_culprit(const StartEnd& end, bool is_further);
  // The very first start, without a step.
  Decision refuse_first(const StartEnd& end) const;

  int most_;
  bool may_resize_;
  int used_ = 0;
  int stalled_ = 0;             // starts in a row without a new step
  int culprit_ = -1;            // agent of the last start's
  int culprits_ = 0;            // starts in a row that it was the culprit of
  bool has_worked_ = false;     // a start has got somewhere
  bool reports_steps_ = false;  // a start did
  std::int64_t furthest_ = 0;   // steps done
};

}  // namespace lockstep::launcher
