// SPDX-License-Identifier: Apache-2.0
// How this rank leaves its group: by a goodbye that all connected peers acknowledge, or by a first cause that they are
// told. They tell the ranks of their hosts (host_status_table.h).
//
// Peers can't tell a closed connection from a death. So a leaving rank waits until each peer has acknowledged its
// goodbye. A peer that doesn't run meanwhile gets the goodbye in the group's scope (membership/scopes.h), for which it
// waits before it calls a rank dead. A rank that has said goodbye itself calls no other dead.
//
// Threads: any, except for functions of the communication thread. Its lock is held only for moments, never during a
//   call of the wire, of the membership or of `on_failure`; so it may be taken under another lock.
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
    // The time that a leaving rank waits for the others to see it: longer than the 3 s after which the job's membership
    // calls a suspended rank lost.
    std::chrono::nanoseconds goodbye = std::chrono::seconds(5);
    // The time that a failed rank waits: for another rank to say why a transfer broke; for its own communication
    // thread.
    std::chrono::nanoseconds aftermath = std::chrono::seconds(2);
  };

  // `wire` outlives it. `on_failure` is Failure's on_cause.
  Shutdown(Wire& wire, const GroupContext& context, std::function<void()> on_failure, const Limits& limits);

  // Begins and ends taking other ranks' messages.
  void start();
  void stop();

  comm::Failure& failure() { return failure_; }
  const comm::Failure& failure() const { return failure_; }
  // A cause about `rank`, as this rank reports it. `rank` may be this one, or -1: no single rank.
  Cause cause_of(Cause::Kind kind, int rank, std::string text, std::uint64_t sequence) const;

  // Takes a frame of `peer` from the wire's listener. False if it is about something else.
  bool on_frame(int peer, const Frame& frame);
  // Takes the end of the connection to `peer`. True if the peer has not left before, and this rank may still need it.
  bool is_loss(int peer);
  // Notes that `rank` has left after collective `last`, as another rank says.
  void note_left(int rank, std::uint64_t last);
  // The last collective of a rank that has said goodbye.
  std::optional<std::uint64_t> left_after(int rank) const;
  // Whether this rank has said goodbye.
  bool leaving() const;

  // The communication thread's functions:
  // Answers the goodbyes that have arrived.
  void acknowledge();
  // Says that this rank leaves after collective `last`. Returns when every peer has seen it or is gone, when the group
  // fails, or after Limits::goodbye. `relays` are the ranks that tell those without a connection to this one.
  void say_goodbye(std::uint64_t last, const std::vector<int>& relays = {});
  // Waits after a transfer broke, because another rank may be about to say why: returns when there is a cause. `last`
  // is the collective that this rank started last.
  void wait_for_a_cause(const std::string& how, std::uint64_t last);
  // Notes that the wire does not access a work's memory any more.
  void release_buffers();
  // Tells the other ranks the cause, after release_buffers().
  void tell_of_failure();

  // Throws the cause, after the group has failed, when the memory of all works is the caller's again.
  [[noreturn]] void raise() const;

 private:
  void on_word(std::string_view word);
  // Waits, for a moment, until the last of `number` messages of this rank to itself has come back, unless the one
  // before it has not.
  void await_word(std::uint64_t number);
  bool all_have_acknowledged() const;
  bool have_answered(const std::vector<int>& peers) const;
  std::vector<int> connected_peers() const;
  // The rank in messages: "rank 2 (host node7, pid 4711)".
  std::string who(int rank) const { return roster_[static_cast<std::size_t>(rank)].describe(); }

  Wire& wire_;
  const rendezvous::Roster roster_;
  const int rank_;
  const Limits limits_;
  // The number of messages of this rank to itself; the communication thread's.
  std::uint64_t words_ = 0;

  mutable Mutex mutex_;
  mutable Condition changed_;
  std::vector<std::optional<std::uint64_t>> left_after_ GUARDED_BY(mutex_);  // by rank that said goodbye
  std::vector<bool> answered_ GUARDED_BY(mutex_);                            // by rank: its goodbye was acknowledged
  // The peers that need no more messages: they have seen this rank's goodbye, are gone, or have no connection.
  std::vector<bool> seen_ GUARDED_BY(mutex_);
  std::vector<int> to_acknowledge_ GUARDED_BY(mutex_);
  bool leaving_ GUARDED_BY(mutex_) = false;
  bool buffers_released_ GUARDED_BY(mutex_) = false;
  // The last collective of a rank that has left, by rank, from its message in the scope.
  std::vector<std::optional<std::uint64_t>> said_ GUARDED_BY(mutex_);
  // The number of messages of this rank to itself that have come back.
  std::uint64_t returned_ GUARDED_BY(mutex_) = 0;

  // Last: messages come until they end.
  comm::Failure failure_;
  membership::GroupChannel channel_;
};

}  // namespace lockstep::wire
