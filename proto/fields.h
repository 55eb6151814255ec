// SPDX-License-Identifier: Apache-2.0
// Reads and writes the fields of one message. Requests (request.h) and replies (reply.h) are made of this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/protocol.h"

namespace lockstep::proto {

enum class Status {
  ok,
  need_more,  // all right so far, but not the whole of it
  malformed,  // not this protocol, or over a limit; nothing that follows on this stream can be trusted
};

// The contents of a request, a reply or a push. Views are into the bytes it was read from, or those it shall be written
// from.
struct Contents {
  std::vector<std::string_view> keys;
  std::vector<std::string_view> values;
  std::int64_t number = 0;  // the u8, u32 or i64; no message has two
};

// Appends `fields` with what they hold to `out`. The counts in `contents` must be what `fields` ask for.
void write_fields(std::string& out, std::span<const Field> fields, const Contents& contents);

// Reads `fields` from bytes that arrive in any pieces. Each byte is looked at once, so that a sender of single bytes
// costs no more than one of large pieces. Memory grows with what has arrived, never with a length that is only
// announced.
class FieldReader {
 public:
  // Starts a message whose fields begin at `offset` of the input. `expected_values` is the count for Field::values.
  void start(std::span<const Field> fields, std::size_t offset, std::size_t expected_values = 0);

  // Reads on. `input` begins with the first byte of the message and holds at least what it held last time, perhaps at
  // another address. After ok or malformed, call start() again.
  Status read(std::string_view input, const Limits& limits);

  // After ok: where the message ends, and what it holds, as views into `input`.
  std::size_t end() const { return offset_; }
  void contents(std::string_view input, Contents& out) const;
  // After malformed: what was wrong, with the value seen and its limit.
  const std::string& reason() const { return reason_; }

 private:
  struct Slice {
    std::size_t offset;
    std::size_t size;
  };

  Status read_field(Field field, std::string_view input, const Limits& limits);
  Status read_status(std::string_view input);
  Status read_repeated(Field field, std::string_view input, const Limits& limits);
  Status read_count(Field field, std::string_view input, const Limits& limits);
  Status read_number(std::size_t bytes, std::string_view input, std::uint64_t& out);
  Status read_slice(Field kind, std::string_view input, const Limits& limits);
  Status fail(std::string reason);

  std::span<const Field> fields_;
  std::size_t expected_values_ = 0;
  std::size_t offset_ = 0;         // first byte not read
  bool counted_ = false;           // the repeated field at hand has given its count
  std::uint64_t slices_left_ = 0;  // keys and values that the repeated field still lacks
  std::vector<Slice> keys_;
  std::vector<Slice> values_;
  std::uint64_t number_ = 0;
  std::string reason_;
};

}  // namespace lockstep::proto
