// SPDX-License-Identifier: Apache-2.0
#include "runtime/membership/relay_table.h"

#include <fmt/format.h>

#include "lockstep/base/environment.h"
#include "runtime/membership/store_event.h"

namespace lockstep::membership {
namespace {

using proto::Op;

constexpr std::chrono::milliseconds kBeats{500};
constexpr std::size_t kLongestGiveUp = 4096;

store::Frame refusal(std::string why) { return {.status = proto::kRefused, .list = {std::move(why)}}; }

std::string bytes_of(const proto::Request& request) {
  std::string bytes;
  proto::write_request(bytes, request);
  return bytes;
}

}  // namespace

RelayTable::RelayTable(const ProcessInfo& self, const MembershipOptions& options, const MemberProbe& probe)
    : self_(encode(self)), table_(options, probe) {}

std::optional<store::Frame> RelayTable::serve(store::SessionId id, const proto::Request& request) {
  if (!gone_.empty()) return refusal(gone_);
  const auto& values = request.contents.values;
  std::optional<std::string> refused;
  switch (request.op) {
    case Op::register_member: return register_member(id, request);
    case Op::heartbeat: return heartbeat(id, request);
    case Op::goodbye: refused = table_.goodbye(id, request.contents.number); break;
    case Op::report: refused = table_.report(id, values[0]); break;
    case Op::message:
    case Op::say: refused = table_.message(id, values[0]); break;
    default: refused = "a relay passes on no such operation"; break;
  }
  if (refused) return refusal(std::move(*refused));
  pass_on(id, request);
  if (request.op == Op::goodbye) members_.erase(id);
  return std::nullopt;
}

// The store refuses what it does not accept, and judges hangs: here each member is alone in its scope.
std::optional<store::Frame> RelayTable::register_member(store::SessionId id, const proto::Request& request) {
  const auto& values = request.contents.values;
  if (id > kMostChannels) return refusal("this relay has had too many connections; start the job again");
  if (auto why = table_.register_member(id, std::to_string(id), values[0], values[1], values[2], values[3])) {
    return refusal(std::move(*why));
  }
  members_[id] = {};
  pass_on(id, request);
  return std::nullopt;
}

std::optional<store::Frame> RelayTable::heartbeat(store::SessionId id, const proto::Request& request) {
  if (auto why = table_.heartbeat(id, request.contents.number, request.contents.values[0])) {
    return refusal(std::move(*why));
  }
  Member& member = members_[id];
  std::string beat = bytes_of(request);
  member.is_new = member.is_new || beat != member.beat;
  member.beat = std::move(beat);
  store::Frame answer{.status = proto::kPushBeat};
  if (traced_) answer.list = {"traced"};
  return answer;
}

void RelayTable::pass_on(store::SessionId id, const proto::Request& request) {
  flush_beats();
  requests_.push_back({.channel = id, .bytes = bytes_of(request)});
}

void RelayTable::flush_beats() {
  beats_sent_at_ = now_;
  for (auto& [id, member] : members_) {
    if (std::exchange(member.is_new, false)) requests_.push_back({.channel = id, .bytes = member.beat});
  }
}

void RelayTable::ended(store::SessionId id) {
  if (!table_.is_member(id)) return;
  flush_beats();
  requests_.push_back({.channel = id});
  table_.ended(id);
  members_.erase(id);
}

void RelayTable::observe(Time now) {
  now_ = now;
  table_.observe(now);
}

void RelayTable::check_members() {
  table_.take_news();    // of what was passed on
  table_.take_pushes();  // to a member about itself alone
  table_.check_members();
  for (const MemberNews& news : table_.take_news()) {
    const auto id = parse_int(news.scope);
    if (!id || !news.cause || news.cause->kind != Cause::Kind::silent) continue;
    const std::string cause = encode(*news.cause, kLongestGiveUp);
    pass_on(static_cast<store::SessionId>(*id), {Op::give_up, {{}, {cause}, 0}});
  }
  // That a member is silent it hears from the store, as all do.
  for (const MembershipTable::Push& push : table_.take_pushes()) {
    if (push.kind == MembershipTable::Kind::nudge) frames_.push_back({push.to, {.status = proto::kPushBeat}});
  }
  if (now_ - beats_sent_at_ >= kBeats) flush_beats();
}

void RelayTable::deliver(const std::vector<ForwardedFrame>& frames) {
  for (const auto& [channels, frame] : frames) {
    for (const std::uint64_t id : channels) {
      frames_.push_back({id, frame});
      const auto found = members_.find(id);
      if (found == members_.end() || !found->second.is_registering) continue;
      if (frame.status == proto::kOk) {
        found->second.is_registering = false;
        frames_.back().second.list = {self_, std::string(kRelayed)};
      } else if (frame.status == proto::kRefused) {
        members_.erase(found);
        table_.ended(id);
      }
    }
  }
}

void RelayTable::deliver(const MemberEvent& of_store) {
  if (of_store.kind == MemberEvent::Kind::store_lost) {
    gone_ = fmt::format("the job's store at {} is gone: it {}", of_store.address, of_store.cause.text);
  }
  const store::Frame frame = encode_store_event(of_store);
  for (const auto& [id, member] : members_) {
    if (!member.is_registering) {
      frames_.push_back({id, frame});
    } else if (!gone_.empty()) {
      frames_.push_back({id, refusal(gone_)});
    }
  }
}

}  // namespace lockstep::membership
