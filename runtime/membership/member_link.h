// SPDX-License-Identifier: Apache-2.0
// The client's part of membership: a rank's one control connection, and the thread that keeps it. It leads to the job's
// store, or to the relay in the launcher of this host (member_relay.h), which has one connection to the store for all
// of its ranks.
//
// The thread sends heartbeats and hears at once who is lost, silent, has failed or left
// (membership/membership_table.h), and notices by itself that the store is lost or silent. Silence counts only over
// time in which the thread ran, so a rank that was stopped and resumes accuses nobody. The connection is authenticated
// as any other.
//
// Threads: the owner's, but for report(), send(), say(), is_answered() and forward(): any.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/owner_process.h"
#include "lockstep/job/cause.h"
#include "runtime/base/unwind_guard.h"
#include "runtime/membership/forwarding.h"
#include "runtime/membership/member_info.h"
#include "runtime/store/endpoint.h"

namespace lockstep::membership {

struct LivenessOptions {
  // Watch for silence of this member (by the store) and of the store (by it). Off: neither is ever silent; both may be
  // lost.
  bool detect_silence = true;
  // Between two heartbeats.
  std::chrono::nanoseconds heartbeat = std::chrono::milliseconds(500);
  // A store from which nothing came for so long has stopped answering, and for the store this member. In whole
  // milliseconds.
  std::chrono::nanoseconds silence = std::chrono::seconds(2);
  // Time limit of the others' progress: a rank behind them that starts no collective for so long hangs, and is given
  // up. The store takes the least that a member asks for. 0: nobody hangs. In whole milliseconds, at least kLeastHang.
  std::chrono::milliseconds hang{0};
  // How long goodbye(), and the report of an end, wait for the store to have it.
  std::chrono::nanoseconds farewell = std::chrono::seconds(1);
};

// The limit that LOCKSTEP_LIVENESS sets for silence, of members and of the store; nothing: silence is not watched for.
// InvalidArgument.
std::optional<std::chrono::nanoseconds> silence_limit(const Environment& environment);

struct MemberEvent {
  enum class Kind {
    lost,           // a member's connection ended without a goodbye
    silent,         // a member stopped answering; this one itself, if it was stopped and resumes
    failed,         // a member reported a failure of its own
    left,           // rank 0 said goodbye; of the others' nothing is heard
    store_lost,     // the connection to the store ended: no event comes any more
    store_silent,   // the store stopped answering
    store_answers,  // and answers again
  };
  Kind kind = Kind::lost;
  // For events of the store: rank -1, and a text without subject, "stopped answering: ...". For `left`: the rank and
  // its last collective.
  Cause cause = {};
  std::int64_t number = 0;  // of a failure: 1 is the scope's first cause
  // For events of the store: its address, and the process that hosts it, if known.
  std::string address = {};
  std::optional<ProcessInfo> host = {};
  bool host_answers = true;  // of store_silent: its host's kernel has acknowledged all that was sent to it
  bool is_of_relay = false;  // of the store: it is the relay that was lost or is silent; address and host are its own
};

struct MemberCalls {
  // On the link's own thread, with no lock held; must not destroy the link.
  std::function<void(const MemberEvent&)> on_event = {};
  // Position of this member: goes with heartbeats, and its sequence with the destructor's goodbye. Any thread.
  std::function<MemberPosition()> position = {};
  // For members whose requests were sent by forward(). On the link's own thread.
  std::function<void(std::vector<ForwardedFrame>)> on_forwarded = {};
  // A word that a member, perhaps this one, has said in a group (scopes.h). On the link's own thread.
  std::function<void(const std::string& group, std::string word)> on_word = {};
};

class MemberLink {
 public:
  // Connects to a store that this process has reached before, and registers `self` in `scope`. Throws StoreError if the
  // store refuses (a rank that is there already: both are named) or its host has gone, Timeout, and what TcpConnection
  // throws.
  MemberLink(const store::Endpoint& endpoint, std::string_view scope, const MemberInfo& self,
             const LivenessOptions& options, MemberCalls calls, const Deadline& deadline);
  // As goodbye() after the last collective of MemberCalls::position, unless goodbye() was called; after a report() too.
  // No event comes afterwards. While an exception unwinds that was not under way at the constructor: reports that
  // instead, without a goodbye, unless something was reported before, of which the exception is a consequence.
  // In a forked child: nothing.
  ~MemberLink();
  MemberLink(const MemberLink&) = delete;
  MemberLink& operator=(const MemberLink&) = delete;

  // Leaves, after collective `last`: the end of this process is not a loss from now on. Returns when the store has it,
  // or after LivenessOptions::farewell. No event comes afterwards. Not from within an event.
  void goodbye(std::int64_t last);
  // This member's group has failed, by its own fault or another's: all others are told the cause. Or, with
  // Cause::ends_group false, what only the store's host is told. Returns when the store has it, and its host's news
  // have it, so that whatever this process does next comes after it; where the store does not answer, after
  // LivenessOptions::farewell, or kDeadHost if the group continues. From within an event it returns at once. The link
  // stays.
  void report(const Cause& cause);
  // To the store's host alone, in order with what else this member says. Returns as report() of a group that continues;
  // a store that can't be reached is an event.
  void send(std::string_view message);
  // Says a word to these ranks of the scope, or with none to all of them, in order with what else this member says:
  // their MemberCalls::on_word gets it. Returns at once; what can't be sent for want of the store is dropped.
  void say(std::string_view group, const std::vector<int>& ranks, std::string_view word);
  // False if nothing that is said now may be passed on: the store is lost or silent, or this member leaves.
  bool is_answered() const;
  // Requests of members that this one carries, in order with what it says itself. Returns at once; what can't be sent
  // for want of the store is dropped.
  void forward(std::span<const ForwardedRequest> requests);

 private:
  class Impl;
  OwnedHere<Impl> impl_;
  UnwindGuard unwinding_;
};

}  // namespace lockstep::membership
