// SPDX-License-Identifier: Apache-2.0
// Which rank failed first: the root of the job's failure. Pure: it is told of each end and each cause in the order in
// which they happened.
//
// A rank that ended badly, or was accused, or of which the store has bad news, is implicated. A rank that accuses
// another, or whose exit code says that it lost one, is a witness: whatever it does later is a consequence. The root is
// an implicated rank that accuses nobody; of several, the one that was implicated first. Ranks that found a difference
// among them are witnesses of it, and where nobody else failed it has no root. A root may be busy with its own
// end, and a SIGTERM would hide what that is: its end is awaited, but not for long. docs/ATTRIBUTION.md has the rules
// for users.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "launcher/process/exit_status.h"
#include "lockstep/job/cause.h"

namespace lockstep::launcher {

class RootCause {
 public:
  enum class Step {
    go_on,
    // The root is not known, or has not shown how it ends: wait for it at most patience(), then call overdue().
    await_root,
    // first_failure() is known: end the others. Comes once.
    end_others,
  };

  // How long to wait in await_root. A rank that dies needs a moment however short the grace period is: it may dump
  // core, and the others learn of its end at the same time as the launcher. One that is silent shows nothing more: the
  // others get the time to say that they have heard of it.
  std::chrono::milliseconds patience(std::chrono::milliseconds grace) const;

  explicit RootCause(int ranks) : ranks_(static_cast<std::size_t>(ranks)), running_(ranks) {}

  Step ended(int rank, const ExitStatus& ending);
  // A rank's report, or what the store or the launcher itself (reporter -1) has to say of a rank. Of ranks that the job
  // has not, nothing follows.
  Step heard(const Cause& cause);
  // The root has not shown itself: whoever is most likely it is named.
  Step overdue();
  // The ranks have formed a group: what was said before it they have survived.
  void all_have_met();

  const std::optional<int>& first_failure() const { return first_failure_; }
  // The report on the first failure, the rank's own before the store's, before another rank's; null if there was none.
  const Cause* cause() const;
  // The report on the end of a rank by itself, or else by the store, since all had met; null if there was none.
  const Cause* word_about(int rank) const {
    return at(rank).word && at(rank).word->ends_group ? &*at(rank).word : nullptr;
  }
  // How the first failure had ended when it was named; nullopt: it was running.
  const std::optional<ExitStatus>& ending() const { return ending_; }
  // The difference that the ranks found among them, if every rank that failed did so for that: then nobody is to blame,
  // and first_failure() is only the first that ended. Null if nothing is, as a rule.
  const Cause* disagreement() const;
  // Ranks that were roots just as much when the first failure was named: they failed by themselves.
  const std::vector<int>& other_roots() const { return other_roots_; }
  // Ranks that accuse each other in a circle, so that none is the root; empty as a rule.
  const std::vector<int>& circle() const { return circle_; }
  // Ranks that ended after it, or because of it.
  int others() const { return others_; }
  // The job's: the first failure's own exit code, if it has one that is not 0.
  int exit_code() const;

 private:
  static constexpr std::chrono::milliseconds kRootLimit{1500};
  static constexpr std::chrono::milliseconds kSilentLimit{500};
  // In which a rank tells the others of a failure that the group survives (ddp/rank0.h), and some more.
  static constexpr std::int64_t kCollectivesToTell = 8;

  struct Rank {
    std::optional<ExitStatus> ending = {};
    std::optional<Cause> word = {};        // what it, or else the store, says of it
    std::optional<Cause> accusation = {};  // what the first rank to accuse it says
    bool is_witness = false;
    int accuses = -1;    // the first rank that it accused
    int implicated = 0;  // from 1: when it came to attention; 0: never
  };

  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  bool is_rank(int rank) const { return rank >= 0 && static_cast<std::size_t>(rank) < ranks_.size(); }
  static bool has_failed_before(const Rank& witness, const Cause& accusation);
  void implicate(int rank);
  Step judge();
  // By when they were implicated.
  std::vector<int> roots() const;
  bool is_silent(int rank) const;
  bool has_shown_itself(int rank) const;
  void find_circle();
  Step name(int rank);

  std::vector<Rank> ranks_;
  int running_;
  int implications_ = 0;
  bool has_begun_ = false;  // a rank ended badly, or will not end: the job is over
  bool awaits_ = false;
  std::optional<int> first_failure_;
  std::optional<int> first_witness_;   // that ended
  std::optional<Cause> disagreement_;  // the first Mismatch that was told of no single rank
  std::optional<ExitStatus> ending_;
  std::vector<int> other_roots_;
  std::vector<int> circle_;
  int others_ = 0;
};

}  // namespace lockstep::launcher
