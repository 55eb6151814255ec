// SPDX-License-Identifier: Apache-2.0
// The table of a relay: the members of one host, what of theirs goes to the job's store, and what they are sent from
// there (member_relay.h).
//
// Registrations, reports, goodbyes and ends are passed on as they come, and so are their answers: whatever the store
// has answered it knows. Heartbeats are answered here. One that says something new goes to the store together with the
// others', twice a second, and before anything else of this host does, so that a failure is judged by where each had
// come to. Silence is judged here, as the store judges members with connections of their own: by a clock that stands
// still while this process does, and by what the kernel says of the process.
//
// Pure: no sockets, and the time is passed in. One thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/request.h"
#include "runtime/membership/forwarding.h"
#include "runtime/membership/member_link.h"
#include "runtime/membership/membership_table.h"
#include "runtime/store/frame.h"

namespace lockstep::membership {

class RelayTable {
 public:
  using Time = MembershipTable::Time;
  using Delivery = std::pair<store::SessionId, store::Frame>;

  // `self`: this process, in whose place members see the store's.
  explicit RelayTable(const ProcessInfo& self, const MembershipOptions& options = {}, const MemberProbe& probe = {});

  // A request of the member with this connection: the answer, or nothing if it comes from the store.
  std::optional<store::Frame> serve(store::SessionId member, const proto::Request& request);
  // The connection has ended. Any one: most connections are not members'.
  void ended(store::SessionId member);
  // The observer runs now. Before the others, as often as time matters.
  void observe(Time now);
  // Finds the silent, and has heartbeats sent that are due. At least every MembershipOptions::look_interval.
  void check_members();

  // From the store.
  void deliver(const std::vector<ForwardedFrame>& frames);
  void deliver(const MemberEvent& of_store);

  // For the store, since the last call, in order.
  std::vector<ForwardedRequest> take_requests() { return std::exchange(requests_, {}); }
  // Heartbeats too that would have had time, for what goes to the store now by another way.
  void flush_beats();
  // For members, since the last call, in order.
  std::vector<Delivery> take_frames() { return std::exchange(frames_, {}); }
  bool is_member(store::SessionId member) const { return table_.is_member(member); }
  std::size_t present() const { return table_.present(); }
  // HEARTBEAT's answer says it.
  void set_traced(bool traced) { traced_ = traced; }

 private:
  struct Member {
    bool is_registering = true;  // the store has not answered
    std::string beat = {};       // the last heartbeat, as a request
    bool is_new = false;         // and the store has not got it
  };

  std::optional<store::Frame> register_member(store::SessionId id, const proto::Request& request);
  std::optional<store::Frame> heartbeat(store::SessionId id, const proto::Request& request);
  void pass_on(store::SessionId id, const proto::Request& request);

  const std::string self_;
  MembershipTable table_;  // each member in a scope of its own, named after its connection
  std::map<store::SessionId, Member> members_;
  std::vector<ForwardedRequest> requests_;
  std::vector<Delivery> frames_;
  std::string gone_;  // why the store is gone; empty: it is there
  bool traced_ = false;
  Time now_{};
  Time beats_sent_at_{};
};

}  // namespace lockstep::membership
