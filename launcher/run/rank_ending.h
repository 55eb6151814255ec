// SPDX-License-Identifier: Apache-2.0
// The end of this host's ranks: SIGTERM, time for ranks that save, SIGKILL. Main thread only.
#pragma once

#include <chrono>
#include <optional>
#include <span>

#include "launcher/output/console.h"
#include "launcher/run/job_tree.h"
#include "launcher/watch/rank_process.h"
#include "lockstep/base/deadline.h"

namespace lockstep::launcher {

class RankEnding {
 public:
  // A process that doesn't end this long after SIGKILL waits for a device, and is left to the kernel.
  static constexpr std::chrono::seconds kUnkillableLimit{5};

  struct Options {
    std::chrono::milliseconds grace{700};                              // between SIGTERM and SIGKILL
    std::chrono::nanoseconds stop_timeout = std::chrono::seconds(25);  // for ranks that save after another's failure
  };
  // `console`, `tree` and `ranks` outlive it.
  RankEnding(const Options& options, Console& console, const JobTree& tree, std::span<const RankProcess> ranks)
      : options_(options), console_(console), tree_(tree), ranks_(ranks) {}

  enum class Why {
    // Another rank failed: a rank that handles SIGTERM may be saving the last step, which survivors hold (Snapshots).
    failed,
    left_over  // the ranks have ended, and processes of theirs remain
  };
  // Sends SIGTERM now, and SIGKILL after the grace period.
  void begin(Why why);
  // Sends SIGKILL now.
  void kill();
  // Sends SIGTERM to the ranks that handle it, and so stop after a step. Other ranks would only die.
  void ask_to_stop();

  // Time at which check() is due; nullopt if it is not.
  std::optional<Deadline> due() const { return give_up_at_ ? give_up_at_ : kill_at_; }
  void check();
  // Returns true after begin() or kill().
  bool is_under_way() const { return kill_at_ || give_up_at_; }
  bool is_killing() const { return give_up_at_.has_value(); }
  // Returns true if the processes that still run can't be killed.
  bool has_given_up() const { return give_up_at_ && give_up_at_->expired(); }
  // Returns true if the ranks of a failed job are being ended.
  bool is_after_failure() const { return is_after_failure_; }
  // Cancels all timers.
  void conclude();

 private:
  bool someone_saves();

  const Options options_;
  Console& console_;
  const JobTree& tree_;
  const std::span<const RankProcess> ranks_;
  bool is_after_failure_ = false;
  Deadline save_until_ = Deadline::never();  // deadline from the first SIGTERM on, for ranks that handle it
  bool has_said_who_saves_ = false;
  std::optional<Deadline> kill_at_;     // set after SIGTERM to the ranks
  std::optional<Deadline> give_up_at_;  // set after SIGKILL to the ranks
};

}  // namespace lockstep::launcher
