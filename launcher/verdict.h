// Which rank failed first. Pure: it is told of each end in the order in which they happened.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

#include "launcher/outcome.h"

namespace lockstep::launcher {

class Verdict {
 public:
  enum class Step {
    go_on,
    // A rank says that another one failed before it. That one may be busy with its own end, and a SIGTERM would hide
    // what it is: wait for it, but not for long, then call overdue().
    await_cause,
    // first_failure() is known: end the others. Comes once.
    end_others,
  };

  // How long to wait in await_cause. A rank that dies needs a moment however short the grace period is: it may dump
  // core, and the others learn of its end at the same time as the launcher.
  static std::chrono::milliseconds cause_limit(std::chrono::milliseconds grace) { return std::max(grace, kCauseLimit); }

  explicit Verdict(int ranks) : running_(ranks) {}

  Step ended(int rank, const Ending& ending);
  // A rank that runs is named: it is stopped, or silent. Nothing if another was named before.
  Step accused(int rank);
  // The cause has not shown itself: who was first to speak of it is named.
  Step overdue();

  const std::optional<int>& first_failure() const { return first_failure_; }
  // Ranks that ended after it, or because of it; it is none of them.
  int others() const { return others_; }

 private:
  static constexpr std::chrono::milliseconds kCauseLimit{700};

  Step name(int rank);

  int running_;
  std::optional<int> first_failure_;
  std::optional<int> witness_;  // the first of those that speak of another's failure
  int others_ = 0;
};

}  // namespace lockstep::launcher
