// SPDX-License-Identifier: Apache-2.0
// Frames, the messages that ranks exchange besides the data, as bytes: little-endian, of one size.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/comm/op_record.h"
#include "runtime/comm/wire/wire.h"

namespace lockstep::wire {

// The number of payload bytes that travel in a frame, after the record that describes them.
inline constexpr std::size_t kInlineBytes = kFrameBytes - 128;

enum class FrameKind : std::uint8_t {
  collective = 1,  // this rank starts collective `number`: record, and its data if that fits
  post,            // message `number` to you: record (root is the tag), and its data if that fits
  taken,           // your message `number` has been received whole
  accept,          // deliver your message `number`
  delivered,       // message `number` is out
  goodbye,         // this rank leaves after collective `number`
  seen,            // your goodbye was seen
  failed,          // the group has failed: the payload is its Cause (job/cause.h)
};

struct Frame {
  FrameKind kind = FrameKind::collective;
  std::uint64_t number = 0;
  comm::OpRecord record = {};
  // The payload, at most kInlineBytes; a read frame's lies in the bytes that it was read from.
  std::span<const std::byte> payload = {};
};

FrameBytes write_frame(const Frame& frame);
// The number of bytes of a written frame that must be sent: the rest is zero and means nothing.
std::size_t used_bytes(std::span<const std::byte> frame);
// Parses a frame; nullopt if the bytes are not one.
std::optional<Frame> read_frame(std::span<const std::byte> bytes);

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace lockstep::wire
