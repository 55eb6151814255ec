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

// Codes as in PyTorch's TCPStore since the end of 2023. 14 to 127 belong to PyTorch, 128 and up to lockstep.
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
};

// What VALIDATE carries. It keeps port scanners out, nobody else.
inline constexpr std::uint32_t kMagic = 0x3C85F7CE;

// Replies of one byte.
inline constexpr std::uint8_t kReady = 0;         // CHECK: all keys exist
inline constexpr std::uint8_t kNotReady = 1;      // CHECK: at least one does not
inline constexpr std::uint8_t kStopWaiting = 0;   // WAIT: all keys exist now
inline constexpr std::uint8_t kWaitCanceled = 1;  // CANCEL_WAIT

// What a reader accepts. PyTorch's server has the same limits on key, value and count.
struct Limits {
  std::size_t max_key_bytes = 8192;
  std::size_t max_value_bytes = std::size_t{8} << 20;
  std::size_t max_count = 131072;                         // keys, or pairs, in one request
  std::size_t max_message_bytes = std::size_t{64} << 20;  // one request, or one reply, as a whole
};

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
};

// What follows the op byte of a request, and what answers it; no reply fields: the request isn't answered.
struct OpShape {
  Op op;
  std::string_view name;  // as PyTorch calls it, for messages
  std::span<const Field> request;
  std::span<const Field> reply;
};

// The operation with this code on the wire, if there is one.
std::optional<Op> op_from_code(std::uint8_t code);
const OpShape& shape_of(Op op);

}  // namespace lockstep::proto
