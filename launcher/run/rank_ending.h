// SPDX-License-Identifier: Apache-2.0
// How the ranks of this host are ended: SIGTERM, time for those that save, SIGKILL. Main thread only.
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
  // A process that doesn't end this long after SIGKILL waits for a device; it is left to the kernel.
  static constexpr std::chrono::seconds kUnkillableLimit{5};

  struct Options {
    std::chrono::milliseconds grace{700};                              // between SIGTERM and SIGKILL
    std::chrono::nanoseconds stop_timeout = std::chrono::seconds(25);  // for ranks that save after another's failure
  };
  // `console`, `tree` and `ranks` outlive it.
  RankEnding(const Options& options, Console& console, const JobTree& tree, std::span<const RankProcess> ranks)
      : options_(options), console_(console), tree_(tree), ranks_(ranks) {}

  enum class Why {
    failed,    // another rank: who handles SIGTERM may be saving what a survivor holds, the last step (Snapshots)
    left_over  // the ranks have ended, and processes of theirs are left
  };
  // SIGTERM now, SIGKILL after the grace period.
  void begin(Why why);
  // SIGKILL now.
  void kill();
  // SIGTERM to the ranks that handle it, and so stop after a step. The others would only die.
  void ask_to_stop();

  // When check() is due; nothing while nothing is awaited.
  std::optional<Deadline> due() const { return give_up_at_ ? give_up_at_ : kill_at_; }
  void check();
  // Once begin() or kill() was called.
  bool is_under_way() const { return kill_at_ || give_up_at_; }
  bool is_killing() const { return give_up_at_.has_value(); }
  // The processes that still run can't be killed.
  bool has_given_up() const { return give_up_at_ && give_up_at_->expired(); }
  // The ranks of a failed job are being ended.
  bool is_after_failure() const { return is_after_failure_; }
  // Nothing is due any more.
  void conclude();

 private:
  bool someone_saves();

  const Options options_;
  Console& console_;
  const JobTree& tree_;
  const std::span<const RankProcess> ranks_;
  bool is_after_failure_ = false;
  Deadline save_until_ = Deadline::never();  // from the first SIGTERM, for ranks that handle it
  bool has_said_who_saves_ = false;
  std::optional<Deadline> kill_at_;     // the ranks have had SIGTERM
  std::optional<Deadline> give_up_at_;  // they have had SIGKILL
};

}  // namespace lockstep::launcher
