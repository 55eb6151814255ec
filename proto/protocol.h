// SPDX-License-Identifier: Apache-2.0
// The store's wire protocol as constants: operations, the fields of each, limits. PROTOCOL.md is the specification.
//
// An operation is added by one line in the table of protocol.cc; the reader and the writer follow it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace lockstep::proto {

// What a client speaks. Its first bytes say which: see detect_dialect().
enum class Dialect : std::uint8_t {
  current,   // PyTorch since the end of 2023, opened by VALIDATE
  legacy,    // PyTorch 1.13 and 2.0: other numbers, no greeting, WATCH_KEY
  lockstep,  // opened by HELLO: the current numbers without VALIDATE, and operations of our own
};

// The dialect of a client whose stream begins with `bytes`; none as long as more must arrive to tell. The magic of
// VALIDATE would be, for the legacy dialect, the length of a key of 1 GB.
std::optional<Dialect> detect_dialect(std::string_view bytes);
// "torch", "torch 1.13" or "lockstep", for messages.
std::string_view name_of(Dialect dialect);

// To 0x7f PyTorch gives out the codes, as here since the end of 2023; from 0x80 lockstep does. The legacy dialect has
// numbers of its own: code_of().
enum class Op : std::uint8_t {
  validate = 0,
  set = 1,
  compare_set = 2,
  get = 3,
  add = 4,
  check = 5,
  wait = 6,
  num_keys = 7,
  delete_key = 8,
  append = 9,
  multi_get = 10,
  multi_set = 11,
  cancel_wait = 12,
  ping = 13,
  queue_push = 14,
  queue_pop = 15,
  queue_length = 16,
  list_keys = 17,
  barrier = 18,

  hello = 0x80,
  prove = 0x81,
  wait_get = 0x82,
  set_acked = 0x83,
  // 0x84 to 0x88 have been given out before, and stay free.
  register_member = 0x90,
  heartbeat = 0x91,
  goodbye = 0x92,
  report = 0x93,
  message = 0x94,
  forward = 0x95,
  give_up = 0x96,  // within FORWARD only
  say = 0x97,

  watch_key = 0xff,  // legacy only, where its code is 7
};

// From here on the operations are those of an extension of the server: members.
inline constexpr std::uint8_t kFirstExtensionCode = 0x90;

// What VALIDATE carries. It keeps port scanners out, nobody else.
inline constexpr std::uint32_t kMagic = 0x3C85F7CE;

// What HELLO carries.
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kNonceBytes = 32;

// Replies of one byte.
inline constexpr std::uint8_t kReady = 0;            // CHECK: all keys exist
inline constexpr std::uint8_t kNotReady = 1;         // CHECK: at least one does not
inline constexpr std::uint8_t kStopWaiting = 0;      // WAIT: all keys exist now; BARRIER: all have come
inline constexpr std::uint8_t kWaitCanceled = 1;     // CANCEL_WAIT
inline constexpr std::uint8_t kWatchRegistered = 3;  // WATCH_KEY

// The first byte of a frame that answers an operation of lockstep's own.
inline constexpr std::uint8_t kOk = 0;
inline constexpr std::uint8_t kCancelled = kWaitCanceled;  // CANCEL_WAIT's reply where the frame was awaited; no list
inline constexpr std::uint8_t kRefused = 2;                // [why]
inline constexpr std::uint8_t kMissing = 3;                // [what did not come in time]...

// The first byte of a frame that a member is sent unasked.
inline constexpr std::uint8_t kPushLost = 0x10;       // [rank, failure number, text]
inline constexpr std::uint8_t kPushSilent = 0x11;     // [rank, failure number, text]
inline constexpr std::uint8_t kPushLeft = 0x12;       // [rank, last sequence number]
inline constexpr std::uint8_t kPushFailed = 0x13;     // [rank, failure number, text]
inline constexpr std::uint8_t kPushBeat = 0x14;       // []: the answer to HEARTBEAT
inline constexpr std::uint8_t kPushForwarded = 0x15;  // [members, frame]...: for those whose requests come by FORWARD
inline constexpr std::uint8_t kPushStore = 0x16;      // [what, address, process, "1" or "0", text]: of a relay's store
inline constexpr std::uint8_t kPushWord = 0x17;       // [group, word]: what a member has said

// The first byte of what a legacy client is told of a key that it watches.
inline constexpr std::uint8_t kKeyUpdated = 0;
inline constexpr std::uint8_t kKeyCreated = 1;
inline constexpr std::uint8_t kKeyDeleted = 2;

// What a reader accepts. PyTorch's server has the same limits on key, value and count.
struct Limits {
  std::size_t max_key_bytes = 8192;
  std::size_t max_value_bytes = std::size_t{8} << 20;     // also of an item of a list
  std::size_t max_count = 131072;                         // keys, or pairs, in one request
  std::size_t max_list_items = std::size_t{1} << 20;      // in a list, or in the reply to LIST_KEYS
  std::size_t max_message_bytes = std::size_t{64} << 20;  // one request, or one reply, as a whole
};

// For a client that has not proved itself: room for HELLO and PROVE.
inline constexpr Limits kGreetingLimits = {
    .max_key_bytes = 256, .max_value_bytes = 1024, .max_count = 0, .max_list_items = 0, .max_message_bytes = 4096};

// The parts that requests and replies are made of. Integers are little-endian; `length` and `count` are u64.
enum class Field : std::uint8_t {
  u8,
  u32,
  i64,
  key,     // length, bytes
  value,   // length, bytes
  keys,    // count, then that many keys
  pairs,   // count, then that many of (key, value)
  values,  // as many values as the request had keys; no count on the wire
  item,    // i64, and if that is above 0 one value
  names,   // i64 count, then that many keys
  status,  // u8; the message ends here if it is kCancelled
  list,    // count, then that many values
};

// What follows the op byte of a request, and what answers it; no reply fields: the request isn't answered.
struct OpShape {
  Op op;
  std::string_view name;  // as PyTorch calls it, for messages
  std::span<const Field> request;
  std::span<const Field> reply;
  int legacy_code = -1;  // -1: the legacy dialect doesn't have it
};
const OpShape& shape_of(Op op);

// The operation with this code in the dialect, and the code of an operation, if the dialect has it.
std::optional<Op> op_from_code(std::uint8_t code, Dialect dialect);
std::optional<std::uint8_t> code_of(Op op, Dialect dialect);

}  // namespace lockstep::proto
