// SPDX-License-Identifier: Apache-2.0
// The operations of members as frames: REGISTER, HEARTBEAT, GOODBYE, REPORT and FORWARD into a MembershipTable, and
// what it has to tell out of it. Pure; one thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "proto/request.h"
#include "runtime/membership/membership_table.h"
#include "runtime/store/frame.h"

namespace lockstep::membership {

class MemberService {
 public:
  using ConnectionId = MembershipTable::ConnectionId;

  // `self` is the process that hosts the store: members are told who it is, so that its end can be named.
  MemberService(const ProcessInfo& self, const MemberProbe& probe, const MembershipOptions& options = {})
      : self_(encode(self)), table_(options, probe) {}

  // The answer to a request of `connection`.
  store::Frame serve(ConnectionId connection, const proto::Request& request);
  // The frames of pushes, in order, by the connection that each goes over: one for all members of a carrier.
  static std::vector<std::pair<store::SessionId, store::Frame>> frames_of(std::vector<MembershipTable::Push> pushes);

  // HEARTBEAT's answer says it: members don't take the silence of a store in a debugger for its end.
  void set_traced(bool traced) { traced_ = traced; }
  MembershipTable& table() { return table_; }
  const MembershipTable& table() const { return table_; }

 private:
  store::Frame serve_forwarded(ConnectionId carrier, const proto::Request& forward);

  std::string self_;
  MembershipTable table_;
  bool traced_ = false;
};

}  // namespace lockstep::membership
