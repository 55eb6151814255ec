// SPDX-License-Identifier: Apache-2.0
// Decides whether a job whose ranks have ended is started again, and when. One object serves all starts of a job. Pure.
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
    over,         // all ranks ended with 0, or as requested: the job is not started again
    failed,       // a rank failed
    host_lost,    // a host was lost with all of its ranks
    resized,      // the ranks have stopped so that a host can be added
    awaits_host,  // the ranks can't resume without a host that is not among theirs
  };
  Kind kind = Kind::over;
  int exit_code = 0;
  std::chrono::nanoseconds ran = {};  // time since the ranks were started
  bool reports_steps = false;         // a rank has begun a step (lockstep's DistributedDataParallel, or a Reducer)
  // steps of all starts, as the ranks count them: Snapshots::restore() continues the count
  std::int64_t steps_done = 0;
  std::string why_no_start = {};  // why the ranks can't start again; empty: they can
  // The host of the rank that failed first, if the job can continue without that host.
  std::optional<HostSlots> culprit = {};
  // The name of the first failed rank's host, if an audit has found that the rank computes wrong values.
  std::optional<std::string> wrong_host = {};
};

class RestartPolicy {
 public:
  // Number of consecutive starts without a new step after which the job ends, or continues without the host whose ranks
  // failed first in each of them.
  static constexpr int kMostStalled = 3;
  // The least run time after which a program that reports no steps is started again.
  static constexpr std::chrono::seconds kLongEnough{30};
  // Pause before a start that follows one without a new step; it doubles with each such start, up to kMostPause.
  static constexpr std::chrono::milliseconds kFirstPause{1000};
  static constexpr std::chrono::milliseconds kMostPause{60'000};

  // `most` restarts after failures. `may_resize`: hosts may come and go, and such restarts are not counted.
  RestartPolicy(int most, bool may_resize) : most_(most), may_resize_(may_resize) {}

  struct Decision {
    std::optional<std::chrono::milliseconds> pause = {};  // pause before the next start; nullopt: the job is over
    int exit_code = 0;                                    // exit code of a job that is over
    std::string text = {};                                // message for people; empty: none
    std::optional<HostSlots> left_out = {};               // the host that later starts leave out
  };
  Decision decide(const StartEnd& end);

 private:
  Decision refuse(const StartEnd& end, std::string why) const;
  // Counts the consecutive starts without a new step, up to this one, that had this one's culprit.
  void count_culprit(const StartEnd& end, bool is_further);
  // Ends the job after a failed first start that finished no step.
  Decision refuse_first(const StartEnd& end) const;

  int most_;
  bool may_resize_;
  int used_ = 0;
  int stalled_ = 0;             // consecutive starts without a new step
  int culprit_ = -1;            // agent of the last start's culprit
  int culprits_ = 0;            // consecutive starts with that culprit
  bool has_worked_ = false;     // a start has finished a step, or ran for kLongEnough
  bool reports_steps_ = false;  // a start has reported steps
  std::int64_t furthest_ = 0;   // most steps done
};

}  // namespace lockstep::launcher
