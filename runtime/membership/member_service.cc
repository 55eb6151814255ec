// SPDX-License-Identifier: Apache-2.0
#include "runtime/membership/member_service.h"

#include <utility>

namespace lockstep::membership {
namespace {

std::uint8_t status_of(MembershipTable::Kind kind) {
  switch (kind) {
    case MembershipTable::Kind::lost: return proto::kPushLost;
    case MembershipTable::Kind::silent: return proto::kPushSilent;
    case MembershipTable::Kind::failed: return proto::kPushFailed;
    case MembershipTable::Kind::left: return proto::kPushLeft;
    case MembershipTable::Kind::nudge: return proto::kPushBeat;
  }
  return proto::kPushLost;
}

}  // namespace

store::Frame MemberService::serve(ConnectionId connection, const proto::Request& request) {
  using proto::Op;
  const auto& keys = request.contents.keys;
  const auto& values = request.contents.values;
  const std::int64_t number = request.contents.number;
  std::optional<std::string> refused;
  store::Frame answer;
  switch (request.op) {
    case Op::register_member:
      refused = table_.register_member(connection, keys[0], values[0], values[1], values[2], values[3]);
      answer.list = {self_};
      break;
    case Op::heartbeat:
      refused = table_.heartbeat(connection, number, values[0]);
      answer.status = proto::kPushBeat;
      if (traced_) answer.list = {"traced"};
      break;
    case Op::goodbye: refused = table_.goodbye(connection, number); break;
    case Op::report: refused = table_.report(connection, values[0]); break;
    case Op::message: refused = table_.message(connection, values[0]); break;
    default: refused = "no operation of members"; break;
  }
  if (refused) return {.status = proto::kRefused, .list = {*refused}};
  return answer;
}

store::Frame MemberService::frame_of(MembershipTable::Push push) {
  return {.status = status_of(push.kind), .list = std::move(push.fields)};
}

}  // namespace lockstep::membership
