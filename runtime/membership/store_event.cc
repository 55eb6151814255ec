// SPDX-License-Identifier: Apache-2.0
#include "runtime/membership/store_event.h"

#include <string>

#include "runtime/base/printable.h"

namespace lockstep::membership {
namespace {

using Kind = MemberEvent::Kind;

constexpr std::size_t kLongestText = 4096;

std::string_view word_of(Kind kind) {
  if (kind == Kind::store_lost) return "lost";
  return kind == Kind::store_silent ? "silent" : "answers";
}

}  // namespace

store::Frame encode_store_event(const MemberEvent& event) {
  return {.status = proto::kPushStore,
          .list = {std::string(word_of(event.kind)), event.address, event.host ? encode(*event.host) : std::string(),
                   event.host_answers ? "1" : "0", event.cause.text}};
}

std::optional<MemberEvent> decode_store_event(std::span<const std::string_view> list) {
  if (list.size() < 5) return std::nullopt;
  for (const Kind kind : {Kind::store_lost, Kind::store_silent, Kind::store_answers}) {
    if (list[0] != word_of(kind)) continue;
    return MemberEvent{.kind = kind,
                       .cause = {.kind = kind == Kind::store_silent ? Cause::Kind::silent : Cause::Kind::lost,
                                 .text = printable(list[4], kLongestText)},
                       .address = printable(list[1], 255),
                       .host = decode_process_info(list[2]),
                       .host_answers = list[3] == "1"};
  }
  return std::nullopt;
}

}  // namespace lockstep::membership
