// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/frame.h"

#include <algorithm>
#include <type_traits>

#include "lockstep/job/cause.h"

namespace lockstep::wire {
namespace {

// The first four bytes of a frame, "lsw7". Choose a new kMagic when you change the layout of frames, the ranks to which
// frames are sent, or the way in which bulk data travels.
constexpr std::uint32_t kMagic = 0x3777736c;
constexpr std::size_t kPayloadAt = kFrameBytes - kInlineBytes;
constexpr std::size_t kWordsAt = 64;

// In a frame, bytes 0-3 hold kMagic, byte 4 the FrameKind, byte 5 the OpKind, byte 6 the DType, byte 7 the ReduceOp,
// byte 8 the weighted flag, bytes 10-11 the note's operations, and bytes 12-15 the root. In a frame, bytes 16-23 hold
// the frame's number, bytes 24-31 the count, bytes 32-39 the weight's unit, bytes 40-43 the payload's length, and bytes
// 64-127 the record's words. The payload begins at byte 128. All remaining bytes are zero.
template <typename T>
void put(FrameBytes& bytes, std::size_t at, T value) {
  auto rest = static_cast<std::make_unsigned_t<T>>(value);
  for (std::size_t i = 0; i < sizeof(T); ++i) bytes[at + i] = static_cast<std::byte>(rest >> (8 * i));
}

template <typename T>
T take(std::span<const std::byte> bytes, std::size_t at) {
  std::make_unsigned_t<T> value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value =
        static_cast<std::make_unsigned_t<T>>(value | (static_cast<std::make_unsigned_t<T>>(bytes[at + i]) << (8 * i)));
  }
  return static_cast<T>(value);
}

}  // namespace

FrameBytes write_frame(const Frame& frame) {
  FrameBytes bytes{};
  put(bytes, 0, kMagic);
  put(bytes, 4, static_cast<std::uint8_t>(frame.kind));
  put(bytes, 5, static_cast<std::uint8_t>(frame.record.kind));
  put(bytes, 6, static_cast<std::uint8_t>(frame.record.dtype));
  put(bytes, 7, static_cast<std::uint8_t>(frame.record.op));
  put(bytes, 8, static_cast<std::uint8_t>(frame.record.weighted));
  put(bytes, 10, frame.record.note.bits());
  put(bytes, 12, frame.record.root);
  put(bytes, 16, frame.number);
  put(bytes, 24, frame.record.count);
  put(bytes, 32, frame.record.unit);
  for (std::size_t i = 0; i < comm::kInlineScalars; ++i) put(bytes, kWordsAt + 8 * i, frame.record.words[i]);
  const std::size_t length = std::min(frame.payload.size(), kInlineBytes);
  put(bytes, 40, static_cast<std::uint32_t>(length));
  std::copy_n(frame.payload.begin(), length, bytes.begin() + kPayloadAt);
  return bytes;
}

std::size_t used_bytes(std::span<const std::byte> frame) { return kPayloadAt + take<std::uint32_t>(frame, 40); }

std::optional<Frame> read_frame(std::span<const std::byte> bytes) {
  if (bytes.size() < kPayloadAt || take<std::uint32_t>(bytes, 0) != kMagic) return std::nullopt;
  Frame frame;
  const auto kind = take<std::uint8_t>(bytes, 4);
  const auto operation = take<std::uint8_t>(bytes, 5);
  const auto dtype = take<std::uint8_t>(bytes, 6);
  const auto op = take<std::uint8_t>(bytes, 7);
  const auto length = take<std::uint32_t>(bytes, 40);
  if (kind < static_cast<std::uint8_t>(FrameKind::collective) || kind > static_cast<std::uint8_t>(FrameKind::failed) ||
      operation > static_cast<std::uint8_t>(comm::OpKind::allocate) || dtype > static_cast<std::uint8_t>(DType::u8) ||
      op > static_cast<std::uint8_t>(ReduceOp::product) || length > kInlineBytes ||
      length > bytes.size() - kPayloadAt) {
    return std::nullopt;
  }
  frame.kind = static_cast<FrameKind>(kind);
  frame.record.kind = static_cast<comm::OpKind>(operation);
  frame.record.dtype = static_cast<DType>(dtype);
  frame.record.op = static_cast<ReduceOp>(op);
  frame.record.weighted = take<std::uint8_t>(bytes, 8) != 0;
  frame.record.note = comm::NoteOps::of_bits(take<std::uint16_t>(bytes, 10));
  frame.record.root = take<std::int32_t>(bytes, 12);
  frame.number = take<std::uint64_t>(bytes, 16);
  frame.record.count = take<std::int64_t>(bytes, 24);
  frame.record.unit = take<std::int64_t>(bytes, 32);
  for (std::size_t i = 0; i < comm::kInlineScalars; ++i) {
    frame.record.words[i] = take<std::int64_t>(bytes, kWordsAt + 8 * i);
  }
  frame.payload = bytes.subspan(kPayloadAt, length);
  if (frame.kind == FrameKind::failed && !decode_cause(text_of(frame.payload))) return std::nullopt;
  return frame;
}

}  // namespace lockstep::wire
