// SPDX-License-Identifier: Apache-2.0
// The root of a job's failure: the rank that failed first. Pure: it receives each end and each cause in the order of
// events.
//
// A rank that ended badly, or was accused, or about which the store has bad news, is implicated. A rank that accuses
// another, or whose exit code says that it lost one, is a witness: its later actions are consequences. The root is an
// implicated rank that accuses no other; of several such ranks, the one that was implicated first. Ranks that found a
// difference among them are witnesses of it, and if no other rank failed, the difference has no root. A root may still
// be ending, and a SIGTERM would hide how, so its end is awaited for a limited time. docs/FAILURES.md has the rules
// for users.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/process/exit_status.h"
#include "lockstep/job/cause.h"
#include "runtime/job/exit_code.h"

namespace lockstep::launcher {

// Returns a rank's report of itself without "rank 1 (host a, pid 7) ", which differs between ranks that failed alike.
std::string own_words(const Cause& cause);

class RootCause {
 public:
  enum class Step {
    go_on,
    // The root is not known, or has not ended: wait for it at most patience(), then call overdue().
    await_root,
    // first_failure() is known: end the other ranks. Returned once.
    end_others,
  };

  // Returns the time to wait after await_root. A rank that dies needs a moment however short the grace period is: it
  // may dump core, and the others learn of its end at the same time as the launcher. A silent rank shows no ending; in
  // that case the others get time to report that they have heard of its silence.
  std::chrono::milliseconds patience(std::chrono::milliseconds grace) const;

  explicit RootCause(int ranks) : ranks_(static_cast<std::size_t>(ranks)), running_(ranks) {}

  Step ended(int rank, const ExitStatus& ending);
  // Handles a report of a rank, or of the store or the launcher (reporter -1), about a rank. Reports about ranks
  // outside the job are ignored.
  Step heard(const Cause& cause);
  // The root has not shown its ending: the most likely rank is named.
  Step overdue();
  // The ranks have formed a group, so they have survived all earlier reports.
  void all_have_met();

  const std::optional<int>& first_failure() const { return first_failure_; }
  // Returns the report on the first failure: the rank's own, else the store's, else another rank's; null if there was
  // none.
  const Cause* cause() const;
  // Returns the report on a rank's end since all ranks met: its own, else the store's; null if there was none.
  const Cause* word_about(int rank) const {
    return at(rank).word && at(rank).word->ends_group ? &*at(rank).word : nullptr;
  }
  // cause(), if it is the rank's own report; else null.
  const Cause* own_error() const {
    const Cause* const it = cause();
    return it != nullptr && it->reporter == it->rank ? it : nullptr;
  }
  // Returns the ranks that reported own_error() of themselves, in the same words but for their own name and the place
  // in the step; the first failure is one of them. Empty without own_error().
  std::vector<int> same_error() const;
  // An error of the program on all ranks: none of them is to blame.
  bool is_on_all_ranks() const { return ranks_.size() > 1 && same_error().size() == ranks_.size(); }
  // The ending of the first failure when it was named; nullopt: it was running.
  const std::optional<ExitStatus>& ending() const { return ending_; }
  // Returns the difference that the ranks found among them, if every failed rank failed because of it: then no rank is
  // to blame, and first_failure() is only the first that ended. Usually null.
  const Cause* disagreement() const;
  // Returns true if all ranks failed alike or disagree. first_failure() is then only the first that ended.
  bool blames_no_rank() const { return is_on_all_ranks() || disagreement() != nullptr; }
  // disagreement(), if it is that the ranks lack files of a host that is not among theirs (kHostAbsent).
  const Cause* absent_host() const;
  // Returns true if an audit has found that the first failure's processor computes wrong values.
  bool computes_wrong() const { return cause() != nullptr && cause()->error_number == kHostComputesWrong; }
  // Other ranks that were roots when the first failure was named: they failed by themselves.
  const std::vector<int>& other_roots() const { return other_roots_; }
  // Ranks that accuse each other in a circle, so that none of them is the root; usually empty.
  const std::vector<int>& circle() const { return circle_; }
  // Number of ranks that ended after the first failure, or because of it.
  int others() const { return others_; }
  // Returns the job's exit code: the first failure's own, if it has one that is not 0.
  int exit_code() const;

 private:
  static constexpr std::chrono::milliseconds kRootLimit{1500};
  static constexpr std::chrono::milliseconds kSilentLimit{500};
  // Number of collectives in which a rank tells the others of a failure that the group survives (ddp/rank0.h), with a
  // margin.
  static constexpr std::int64_t kCollectivesToTell = 8;

  struct Rank {
    std::optional<ExitStatus> ending = {};
    std::optional<Cause> word = {};        // the report of the rank itself, else of the store
    std::optional<Cause> accusation = {};  // the report of the first rank that accuses it
    bool is_witness = false;
    bool lost_some = false;  // it lost a rank and does not know which: an error of torch's
    int accuses = -1;        // the first rank that it accused
    int implicated = 0;      // order in which ranks were implicated, from 1; 0: never
  };

  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  bool is_rank(int rank) const { return rank >= 0 && static_cast<std::size_t>(rank) < ranks_.size(); }
  static bool has_failed_before(const Rank& witness, const Cause& accusation);
  void implicate(int rank);
  Step judge();
  // Returns the roots in the order in which they were implicated.
  std::vector<int> roots() const;
  bool is_silent(int rank) const;
  bool has_shown_itself(int rank) const;
  void find_circle();
  Step name(int rank);

  std::vector<Rank> ranks_;
  int running_;
  int implications_ = 0;
  bool has_begun_ = false;  // a rank ended badly, or will not end: the start has failed
  bool awaits_ = false;
  std::optional<int> first_failure_;
  std::optional<int> first_witness_;   // the first that ended
  std::optional<Cause> disagreement_;  // the first Mismatch that was reported about no single rank
  std::optional<ExitStatus> ending_;
  std::vector<int> other_roots_;
  std::vector<int> circle_;
  int others_ = 0;
};

}  // namespace lockstep::launcher
