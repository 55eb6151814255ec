// SPDX-License-Identifier: Apache-2.0
// Messages that the ranks of a group exchange beside NCCL, and the state of the others that this rank knows by them:
// their calls where calls are checked, their goodbyes, and, when a collective does not end, where they are.
//
// Carried by the job's membership (membership/scopes.h). Threads: any; its lock is held for moments only. on_word runs
// on the member link's thread, which answers questions whatever the program's thread is in.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/comm/nccl/group_core.h"
#include "runtime/comm/nccl/group_word.h"

namespace lockstep::nccl {

class GroupScope {
 public:
  // `on_news`: another rank has said something that this group may wait for. `core` outlives it.
  GroupScope(GroupCore& core, std::function<void()> on_news);
  ~GroupScope() { stop(); }
  GroupScope(const GroupScope&) = delete;
  GroupScope& operator=(const GroupScope&) = delete;

  void start();
  // After it nothing is called back.
  void stop();

  // This rank has called it, and what; where calls are checked.
  void say_called(const PendingCall& collective);
  // True once all ranks have called it. Throws Mismatch, with its cause, if one called another operation.
  bool all_have_called(const PendingCall& collective);

  // Goodbye, with the last collective and the numbers of messages.
  void say_goodbye();
  // This rank has not waited for the others' goodbyes.
  void say_aborted();
  bool has_left(int rank) const;
  bool all_have_left() const;
  bool somebody_aborted() const;

  // A rank has left that `first`, this rank's first call that is not done, needs. A rank that leaves has launched all
  // that it took part in; the calls of a group are in one order, so no later call need be looked at.
  std::optional<Cause> left_before(const PendingCall& first) const;
  // Why a call does not end: asks all ranks, for a moment, where they are. A Mismatch if one called another operation.
  Cause diagnose_timeout(const PendingCall& call, const Deadline& deadline);

 private:
  void on_word(std::string_view text);
  void take(const GroupWord& word);
  void answer(const GroupWord& question);
  bool all_have_answered() const;
  // The same of a collective, when the answers are here.
  Cause judge(const PendingCall& collective, const Deadline& deadline) const;
  void say(GroupWord word);

  GroupCore& core_;
  const std::function<void()> on_news_;
  membership::GroupChannel channel_;
  mutable Mutex mutex_;
  std::map<std::uint64_t, std::vector<std::optional<comm::OpRecord>>> called_
      GUARDED_BY(mutex_);                                               // by collective, rank
  std::vector<std::optional<GroupWord>> positions_ GUARDED_BY(mutex_);  // answers, by rank
  std::vector<std::optional<Goodbye>> goodbyes_ GUARDED_BY(mutex_);
  bool somebody_aborted_ GUARDED_BY(mutex_) = false;
  bool answered_ GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::nccl
