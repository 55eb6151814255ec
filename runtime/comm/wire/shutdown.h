// SPDX-License-Identifier: Apache-2.0
// Shutdown makes this rank leave its group, by a goodbye that all connected peers acknowledge, or by a first cause that
// the peers are told. The peers tell the ranks of their hosts (host_status_table.h).
//
// Peers can't tell a closed connection from a death. So a leaving rank waits until each peer has acknowledged its
// goodbye. A peer that doesn't run meanwhile gets the goodbye in the group's scope (membership/scopes.h). A peer looks
// for a goodbye in the scope before it calls a rank dead. A rank that has said goodbye calls no other rank dead.
//
// Threads: any thread may call all functions except those of the communication thread. The lock is held only for
//   moments, never during a call of the wire, of the membership or of `on_failure`, so the lock may be taken under
//   another lock.
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
    // The time that a leaving rank waits until its peers have seen the goodbye. This time is longer than the 3 s after
    // which the job's membership calls a suspended rank lost.
    std::chrono::nanoseconds goodbye = std::chrono::seconds(5);
    // The time that a failed rank waits for another rank to say why a transfer broke, and that it waits for its own
    // communication thread.
    std::chrono::nanoseconds aftermath = std::chrono::seconds(2);
  };

  // `wire` must outlive this object. `on_failure` is Failure's on_cause.
  Shutdown(Wire& wire, const GroupContext& context, std::function<void()> on_failure, const Limits& limits);

  // Begins to take other ranks' messages.
  void start();
  // Ends taking other ranks' messages.
  void stop();

  comm::Failure& failure() { return failure_; }
  const comm::Failure& failure() const { return failure_; }
  // Returns a cause about `rank`, as this rank reports it. `rank` may be this rank, or -1 for no single rank.
  Cause cause_of(Cause::Kind kind, int rank, std::string text, std::uint64_t sequence) const;

  // Handles a frame of `peer` from the wire's listener. Returns false for a frame about neither goodbye nor failure.
  bool on_frame(int peer, const Frame& frame);
  // Handles the end of the connection to `peer`. Returns true if the peer has not left before, and this rank may still
  // need the peer.
  bool is_loss(int peer);
  // Notes that `rank` has left after collective `last`, as another rank says.
  void note_left(int rank, std::uint64_t last);
  // Returns the last collective of `rank` if `rank` has left.
  std::optional<std::uint64_t> left_after(int rank) const;
  // Returns whether this rank has said goodbye.
  bool leaving() const;

  // Only the communication thread calls the functions from here to tell_of_failure().
  //
  // Acknowledges the goodbyes that have arrived.
  void acknowledge();
  // Says that this rank leaves after collective `last`. Returns when every peer has seen the goodbye or is gone, when
  // the group fails, or after Limits::goodbye. `relays` tell the ranks without a connection to this rank.
  void say_goodbye(std::uint64_t last, const std::vector<int>& relays = {});
  // Waits for a cause after a transfer broke, because another rank may be about to say why the transfer broke. If no
  // cause comes, proposes the lost connection as the cause. `last` is the collective that this rank started last.
  void wait_for_a_cause(const std::string& how, std::uint64_t last);
  // Notes that the wire does not access the memory of works any more.
  void release_buffers();
  // Tells the other ranks the cause of the failure. Call tell_of_failure() after release_buffers().
  void tell_of_failure();

  // Throws the cause of the group's failure, as soon as the wire does not access the memory of works any more.
  [[noreturn]] void raise() const;

 private:
  void on_word(std::string_view word);
  // Waits, for a moment, until message `number` of this rank to itself has come back. Does not wait if the message
  // before message `number` has not come back.
  void await_word(std::uint64_t number);
  bool all_have_acknowledged() const;
  bool have_answered(const std::vector<int>& peers) const;
  std::vector<int> connected_peers() const;
  // Returns the rank's name in messages: "rank 2 (host node7, pid 4711)".
  std::string who(int rank) const { return roster_[static_cast<std::size_t>(rank)].describe(); }

  Wire& wire_;
  const rendezvous::Roster roster_;
  const int rank_;
  const Limits limits_;
  // The number of messages that this rank has sent to itself. The communication thread uses words_.
  std::uint64_t words_ = 0;

  mutable Mutex mutex_;
  mutable Condition changed_;
  // The last collective of each rank that has left.
  std::vector<std::optional<std::uint64_t>> left_after_ GUARDED_BY(mutex_);
  std::vector<bool> answered_ GUARDED_BY(mutex_);  // by rank: true if the rank has acknowledged this rank's goodbye
  // True for each peer that needs no more messages: it has seen this rank's goodbye, is gone, or has no connection.
  std::vector<bool> seen_ GUARDED_BY(mutex_);
  std::vector<int> to_acknowledge_ GUARDED_BY(mutex_);
  bool leaving_ GUARDED_BY(mutex_) = false;
  bool buffers_released_ GUARDED_BY(mutex_) = false;
  // The last collective of each rank that has left, from the rank's message in the scope.
  std::vector<std::optional<std::uint64_t>> said_ GUARDED_BY(mutex_);
  // The number of messages of this rank to itself that have come back.
  std::uint64_t returned_ GUARDED_BY(mutex_) = 0;

  // failure_ and channel_ are the last members, because messages come until the end of both.
  comm::Failure failure_;
  membership::GroupChannel channel_;
};

}  // namespace lockstep::wire
