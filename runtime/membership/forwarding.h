// SPDX-License-Identifier: Apache-2.0
// FORWARD: how requests of several members go over the connection of one, their carrier, and what they are sent comes
// back over it (proto/PROTOCOL.md). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/store/frame.h"

namespace lockstep::membership {

// A member that has no connection of its own, by its carrier's and the number that the carrier knows it by. Never the
// number of a connection, as long as a server has had fewer than 2^31 of them.
std::uint64_t forwarded_id(store::SessionId carrier, std::uint64_t channel);
inline constexpr std::uint64_t kMostChannels = (std::uint64_t{1} << 32) - 1;
// The carrier of the member with this id; 0 if it has a connection of its own.
store::SessionId carrier_of(std::uint64_t id);
std::uint64_t channel_of(std::uint64_t id);
// The connection that leads to this member: its carrier's, or its own.
inline store::SessionId connection_of(std::uint64_t id) { return carrier_of(id) != 0 ? carrier_of(id) : id; }

// A request of one member, as FORWARD has it; empty: its connection has ended.
struct ForwardedRequest {
  std::uint64_t channel = 0;
  std::string bytes = {};
};
// A frame for some members.
struct ForwardedFrame {
  std::vector<std::uint64_t> channels = {};
  store::Frame frame = {};
};

std::string write_requests(std::span<const ForwardedRequest> requests);
// The channel of a key of FORWARD; nullopt if the key is not one.
std::optional<std::uint64_t> parse_channel(std::string_view text);
// Appends to the list of a push 0x15.
void append(std::vector<std::string>& list, const ForwardedFrame& frame);
// From such a list; nullopt if it is not one.
std::optional<std::vector<ForwardedFrame>> read_frames(std::span<const std::string_view> list);

}  // namespace lockstep::membership
