// SPDX-License-Identifier: Apache-2.0
// A Frame is a small message between two ranks, by which the ranks announce, agree on and end their work. All frames
// have an equal size, and the integers in a frame are little-endian.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/comm/op_record.h"
#include "runtime/comm/wire/wire.h"

namespace lockstep::wire {

// The largest number of payload bytes of a frame. In a frame, the payload follows the record that describes
// the payload.
inline constexpr std::size_t kInlineBytes = kFrameBytes - 128;

enum class FrameKind : std::uint8_t {
  collective = 1,  // the sender starts collective `number`, with its record and its data if they fit
  post,            // the sender offers message `number`, with its record (root is the tag) and its data if they fit
  taken,           // the sender has received your message `number` whole
  accept,          // the sender asks you to deliver message `number`
  delivered,       // all bytes of message `number` have left the sender
  goodbye,         // the sender leaves after collective `number`
  seen,            // the sender has seen your goodbye
  failed,          // the group has failed; the payload is the failure's Cause (job/cause.h)
};

struct Frame {
  FrameKind kind = FrameKind::collective;
  std::uint64_t number = 0;
  comm::OpRecord record = {};
  // The payload, at most kInlineBytes. In a frame that read_frame() returned, `payload` points into the bytes that
  // read_frame() was given.
  std::span<const std::byte> payload = {};
};

FrameBytes write_frame(const Frame& frame);
// Returns how many bytes of a written frame must be sent, counted from the frame's start. The bytes of a written frame
// after the first used_bytes() bytes are all zero, and need not be sent.
std::size_t used_bytes(std::span<const std::byte> frame);
// Parses a frame. Returns nullopt if `bytes` is not a frame.
std::optional<Frame> read_frame(std::span<const std::byte> bytes);

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace lockstep::wire
