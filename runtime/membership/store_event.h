// SPDX-License-Identifier: Apache-2.0
// A relay's news of the job's store for its members: the push 0x16, and REGISTER's answer. Pure.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "runtime/membership/member_link.h"
#include "runtime/store/frame.h"

namespace lockstep::membership {

// The second item of REGISTER's answer where a relay gives it; the first is the relay's process then.
inline constexpr std::string_view kRelayed = "relayed";

// The frame of an event of the store.
store::Frame encode_store_event(const MemberEvent& event);
// From such a frame's list; nullopt if it is not one.
std::optional<MemberEvent> decode_store_event(std::span<const std::string_view> list);

}  // namespace lockstep::membership
