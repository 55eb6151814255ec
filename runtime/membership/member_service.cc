// SPDX-License-Identifier: Apache-2.0
#include "runtime/membership/member_service.h"

#include <map>
#include <utility>

#include "runtime/membership/forwarding.h"

namespace lockstep::membership {
namespace {

std::uint8_t status_of(MembershipTable::Kind kind) {
  switch (kind) {
    case MembershipTable::Kind::lost: return proto::kPushLost;
    case MembershipTable::Kind::silent: return proto::kPushSilent;
    case MembershipTable::Kind::failed: return proto::kPushFailed;
    case MembershipTable::Kind::left: return proto::kPushLeft;
    case MembershipTable::Kind::nudge: return proto::kPushBeat;
    case MembershipTable::Kind::word: return proto::kPushWord;
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
    case Op::say: refused = table_.say(connection, keys[0], values[0], values[1]); break;
    case Op::give_up:
      refused = carrier_of(connection) != 0 ? table_.give_up(connection, values[0]) : "GIVE_UP comes within FORWARD";
      break;
    case Op::forward: return serve_forwarded(connection, request);
    default: refused = "no operation of members"; break;
  }
  if (refused) return {.status = proto::kRefused, .list = {*refused}};
  return answer;
}

store::Frame MemberService::serve_forwarded(ConnectionId carrier, const proto::Request& forward) {
  const auto& [keys, values, unused] = forward.contents;
  if (carrier_of(carrier) != 0) return {.status = proto::kRefused, .list = {"FORWARD within FORWARD"}};
  if (!table_.is_member(carrier)) {
    return {.status = proto::kRefused, .list = {"only a member forwards for others: REGISTER comes first"}};
  }
  store::Frame answers{.status = proto::kPushForwarded};
  proto::RequestReader reader({}, proto::Dialect::lockstep);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto channel = parse_channel(keys[i]);
    if (!channel) return {.status = proto::kRefused, .list = {"FORWARD: a member is a number from 1 on"}};
    const ConnectionId id = forwarded_id(carrier, *channel);
    if (values[i].empty()) {
      table_.ended(id);
      continue;
    }
    const bool is_whole = reader.read(values[i]) == proto::Status::ok && reader.size() == values[i].size();
    if (!is_whole) return {.status = proto::kRefused, .list = {"FORWARD: what is forwarded is not a request"}};
    store::Frame answer = serve(id, reader.request());
    // A carrier has answered heartbeats itself.
    const bool is_waited_for = reader.request().op != proto::Op::heartbeat && reader.request().op != proto::Op::give_up;
    if (is_waited_for) append(answers.list, {.channels = {*channel}, .frame = std::move(answer)});
  }
  return answers;
}

std::vector<std::pair<store::SessionId, store::Frame>> MemberService::frames_of(
    std::vector<MembershipTable::Push> pushes) {
  std::vector<std::pair<store::SessionId, store::Frame>> frames;
  // An event of a member is pushed to all at once, so that equal pushes to those of a carrier are neighbours.
  std::map<store::SessionId, std::vector<std::uint64_t>> carried;
  for (std::size_t i = 0; i < pushes.size(); ++i) {
    const MembershipTable::Push& push = pushes[i];
    if (const auto carrier = carrier_of(push.to); carrier != 0) {
      carried[carrier].push_back(channel_of(push.to));
    } else {
      frames.emplace_back(push.to, store::Frame{.status = status_of(push.kind), .list = push.fields});
    }
    const bool has_more =
        i + 1 < pushes.size() && pushes[i + 1].kind == push.kind && pushes[i + 1].fields == push.fields;
    if (has_more) continue;
    for (auto& [carrier, channels] : carried) {
      store::Frame frame{.status = proto::kPushForwarded};
      append(frame.list,
             {.channels = std::move(channels), .frame = {.status = status_of(push.kind), .list = push.fields}});
      frames.emplace_back(carrier, std::move(frame));
    }
    carried.clear();
  }
  return frames;
}

}  // namespace lockstep::membership
