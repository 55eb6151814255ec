// SPDX-License-Identifier: Apache-2.0
// Shutdown makes this rank leave its group. Either this rank says goodbye and all connected peers acknowledge the
// goodbye, or the group fails and this rank tells the peers the first cause of the failure. The peers pass a goodbye on
// to the other ranks of their hosts (host_status_table.h).
//
// When a connection closes, a peer can't tell whether the rank at the other end has left the group or has died. A
// leaving rank therefore waits until each peer has acknowledged the goodbye. If a peer is suspended during the wait,
// the leaving rank also says goodbye over the job's membership (membership/scopes.h). Before a peer calls a rank dead,
// the peer checks whether that rank has said goodbye over the membership. A rank that has said goodbye never calls
// another rank dead.
//
// Threads: any thread may call the functions of Shutdown that are not marked as the communication thread's. The lock of
//   Shutdown is held only briefly, and never while the wire, the membership or `on_failure` is called, so a thread may
//   take the lock while the thread holds another lock.
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
    // The longest time that a leaving rank waits until its peers have acknowledged its goodbye. The limit `goodbye` is
    // longer than the 3 s after which the job's membership calls a suspended rank lost.
    std::chrono::nanoseconds goodbye = std::chrono::seconds(5);
    // The longest time that a failed rank waits for another rank to say why a transfer broke, and the longest time that
    // the rank waits for its own communication thread.
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
  // Returns a cause that this rank reports about `rank`. `rank` may be this rank, or -1 if the cause concerns no
  // single rank.
  Cause cause_of(Cause::Kind kind, int rank, std::string text, std::uint64_t sequence) const;

  // Handles a frame that the wire's listener got from `peer`. Returns false if the frame is neither about a goodbye nor
  // about a failure.
  bool on_frame(int peer, const Frame& frame);
  // Handles the end of the connection to `peer`. Returns true if the peer is lost: the peer has not left the group, and
  // this rank may still need the peer.
  bool is_loss(int peer);
  // Records the news from another rank that `rank` has left the group after collective `last`.
  void note_left(int rank, std::uint64_t last);
  // Returns the number of the last collective of `rank` if `rank` has left the group, or nullopt.
  std::optional<std::uint64_t> left_after(int rank) const;
  // Returns whether this rank has said goodbye.
  bool leaving() const;

  // Only the communication thread calls the functions from acknowledge() to tell_of_failure().
  //
  // Acknowledges the goodbyes that have arrived.
  void acknowledge();
  // Tells the peers that this rank leaves the group after collective `last`. Returns when every peer has seen the
  // goodbye or is gone, when the group fails, or after Limits::goodbye. `relays` are the peers that pass the goodbye on
  // to the ranks without a connection to this rank.
  void say_goodbye(std::uint64_t last, const std::vector<int>& relays = {});
  // Waits for a cause after a transfer broke, because another rank may be about to say why the transfer broke. If no
  // cause comes, wait_for_a_cause() proposes the lost connection as the cause. `last` is the number of the collective
  // that this rank started last.
  void wait_for_a_cause(const std::string& how, std::uint64_t last);
  // Records that the wire no longer accesses the callers' buffers.
  void release_buffers();
  // Tells the connected peers the cause of the group's failure. Call tell_of_failure() after release_buffers().
  void tell_of_failure();

  // Waits until the wire no longer accesses the callers' buffers, or until Limits::aftermath has passed, and throws the
  // cause of the group's failure.
  [[noreturn]] void raise() const;

 private:
  void on_word(std::string_view word);
  // Waits for a limited time until message `number` from this rank to itself has come back over the job's membership.
  // Returns at once if an earlier message from this rank to itself has not come back.
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
  // The number of messages that this rank has sent to itself over the job's membership. Only the communication thread
  // uses words_.
  std::uint64_t words_ = 0;

  mutable Mutex mutex_;
  mutable Condition changed_;
  // The number of the last collective of each rank that has left the group, by rank.
  std::vector<std::optional<std::uint64_t>> left_after_ GUARDED_BY(mutex_);
  std::vector<bool> answered_ GUARDED_BY(mutex_);  // by rank: true if the rank has acknowledged this rank's goodbye
  // True for each peer that needs no more messages, because the peer has seen this rank's goodbye, is gone, or has no
  // connection to this rank.
  std::vector<bool> seen_ GUARDED_BY(mutex_);
  std::vector<int> to_acknowledge_ GUARDED_BY(mutex_);
  bool leaving_ GUARDED_BY(mutex_) = false;
  bool buffers_released_ GUARDED_BY(mutex_) = false;
  // The number of the last collective of each rank that has said goodbye over the job's membership, by rank.
  std::vector<std::optional<std::uint64_t>> said_ GUARDED_BY(mutex_);
  // The number of messages from this rank to itself that have come back over the job's membership.
  std::uint64_t returned_ GUARDED_BY(mutex_) = 0;

  // failure_ and channel_ are declared last, because messages may come until both failure_ and channel_ are destroyed.
  comm::Failure failure_;
  membership::GroupChannel channel_;
};

}  // namespace lockstep::wire
