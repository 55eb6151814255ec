// SPDX-License-Identifier: Apache-2.0
// Sessions of one server that has members, without sockets and clocks.
#pragma once

#include <chrono>
#include <utility>
#include <vector>

#include "runtime/membership/member_service.h"
#include "tests/unit/store/server/session_bench.h"

namespace lockstep::membership {

class MemberBench : public store::SessionBench {
 public:
  using SessionBench::SessionBench;

  MemberService members{{.host = "server", .pid = 1, .boot_id = "b"},
                        {.process = [](const ProcessInfo&) { return ProcessState::unknown; }}};
  // REGISTER and its like that were served.
  int member_requests = 0;

  // Time passes: `step` and a look around, so often.
  void pass(std::chrono::milliseconds step, int times) {
    for (int i = 0; i < times; ++i) {
      now_ += step;
      members.table().observe(now_);
      members.table().check_members();
      settle();
    }
  }

 private:
  store::ServerExtension::Answer serve_extension(store::SessionId session, const proto::Request& request) override {
    ++member_requests;
    const store::Frame frame = members.serve(session, request);
    return {.frame = frame, .is_urgent = members.table().is_member(session)};
  }
  void ended(store::SessionId session) override { members.table().ended(session); }
  std::vector<std::pair<store::SessionId, store::Frame>> take_pushes() override {
    return MemberService::frames_of(members.table().take_pushes());
  }

  MembershipTable::Time now_{};
};

}  // namespace lockstep::membership
