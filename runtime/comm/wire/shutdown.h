// SPDX-License-Identifier: Apache-2.0
// How this rank leaves its group: by a goodbye that all connected peers acknowledge, or by a first cause that they are
// told. They tell the ranks of their hosts (host_status_table.h).
//
// Peers can't tell a closed connection from a death. So a leaving rank waits until each peer has acknowledged its
// goodbye. A peer that doesn't run meanwhile hears the goodbye in the group's scope (membership/scopes.h), for which it
// waits before it calls a rank dead. A rank that has said goodbye itself calls nobody dead.
//
// Threads: any, but where the communication thread is named. Its lock is held for moments only, never during a call of
// the wire, of the membership or of `on_failure`; so it may be taken under another.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/rendezvous/roster.h"
#include "runtime/base/mutex.h"
#include "runtime/comm/backend.h"
#include "runtime/comm/failure/failure.h"
#include "runtime/comm/wire/frame.h"
#include "runtime/comm/wire/wire.h"

namespace lockstep::wire {

class Shutdown {
 public:
  struct Limits {
    // How long a rank that leaves stays for the others to see it: longer than the 3 s after which the job's membership
    // calls one that stands still lost.
    std::chrono::nanoseconds goodbye = std::chrono::seconds(5);
    // How long one that has failed waits: for somebody to say why a transfer broke; for its own communication thread.
    std::chrono::nanoseconds aftermath = std::chrono::seconds(2);
  };

  // `wire` outlives it. `on_failure`: as Failure's on_cause.
  Shutdown(Wire& wire, const GroupContext& context, std::function<void()> on_failure, const Limits& limits);

  // Between these calls the words of other ranks are taken.
  void start();
  void stop();

  comm::Failure& failure() { return failure_; }
  const comm::Failure& failure() const { return failure_; }
  // A cause about `rank`, as this rank reports it. `rank` may be this one, or -1: no single one.
  Cause cause_of(Cause::Kind kind, int rank, std::string text, std::uint64_t sequence) const;

  // The wire's listener has a frame of `peer`. False if it is about something else.
  bool on_frame(int peer, const Frame& frame);
  // The connection to `peer` has ended. True if it has not left before, and this rank may need it still.
  bool is_loss(int peer);
  // Another rank says that `rank` has left after collective `last`.
  void note_left(int rank, std::uint64_t last);
  // The last collective of a rank that has said goodbye.
  std::optional<std::uint64_t> left_after(int rank) const;
  // This rank has said goodbye.
  bool leaving() const;

  // The communication thread's:
  // Answers the goodbyes that have come.
  void acknowledge();
  // Says that this rank leaves after collective `last`. Returns when everybody has seen it or is gone, when the group
  // fails, or after Limits::goodbye. `relays`: those who tell the ranks that have no connection to this one.
  void say_goodbye(std::uint64_t last, const std::vector<int>& relays = {});
  // A transfer broke, and somebody may be about to say why: returns when there is a cause. `last`: the collective that
  // this rank started last.
  void wait_for_a_cause(const std::string& how, std::uint64_t last);
  // Touches no memory of a work any more.
  void release_buffers();
  // Tells the others the cause, after that.
  void tell_of_failure();

  // Once the group has failed: throws the cause when the memory of all works is the caller's again.
  [[noreturn]] void raise() const;

 private:
  void on_word(std::string_view word);
  // Until the last of `number` words of this rank's own has come back, unless the one before it has not; for a moment.
  void await_word(std::uint64_t number);
  bool all_have_acknowledged() const;
  bool have_answered(const std::vector<int>& peers) const;
  std::vector<int> connected_peers() const;
  // "rank 2 (host node7, pid 4711)".
  std::string who(int rank) const { return roster_[static_cast<std::size_t>(rank)].describe(); }

  Wire& wire_;
  const rendezvous::Roster roster_;
  const int rank_;
  const Limits limits_;
  std::uint64_t words_ = 0;  // that this rank has said; the communication thread's

  mutable Mutex mutex_;
  mutable Condition changed_;
  std::vector<std::optional<std::uint64_t>> left_after_ GUARDED_BY(mutex_);  // by rank, that said goodbye
  std::vector<bool> answered_ GUARDED_BY(mutex_);                            // by rank: our goodbye
  // The peers that need to be told nothing more: they have seen our goodbye, are gone, or have no connection.
  std::vector<bool> seen_ GUARDED_BY(mutex_);
  std::vector<int> to_acknowledge_ GUARDED_BY(mutex_);
  bool leaving_ GUARDED_BY(mutex_) = false;
  bool buffers_released_ GUARDED_BY(mutex_) = false;
  std::vector<std::optional<std::uint64_t>> said_ GUARDED_BY(mutex_);  // by rank: it has left, by its word in the scope
  std::uint64_t returned_ GUARDED_BY(mutex_) = 0;                      // of the words that this rank has said

  // Last: their words come until they end.
  comm::Failure failure_;
  membership::GroupChannel channel_;
};

}  // namespace lockstep::wire
