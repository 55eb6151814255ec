// SPDX-License-Identifier: Apache-2.0
// Readers of requests, replies and pushes, over any bytes in any pieces.
//
// Input: what to read (below), how it is cut, then the stream. What must hold: the same messages, end and reason come
// out however the stream is cut; a message that was read is written back to its own bytes; nothing is larger than what
// has arrived.
#include <array>
#include <span>
#include <string>
#include <vector>

#include "proto/push.h"
#include "proto/reply.h"
#include "proto/request.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

using proto::Contents;
using proto::Dialect;
using proto::Op;
using proto::Status;

constexpr std::array kDialects = {Dialect::current, Dialect::legacy, Dialect::lockstep};
// Small enough that short inputs reach each of them.
constexpr proto::Limits kTight = {
    .max_key_bytes = 8, .max_value_bytes = 16, .max_count = 4, .max_list_items = 4, .max_message_bytes = 64};

// What came out of a stream: its messages in their own words, and how it ended.
struct Outcome {
  std::vector<std::string> messages;
  Status end = Status::need_more;
  std::string reason;

  bool operator==(const Outcome&) const = default;
};

void check_size(const Contents& contents, std::size_t size) {
  std::size_t bytes = 0;
  for (const auto* list : {&contents.keys, &contents.values}) {
    for (const std::string_view text : *list) bytes += 8 + text.size();
  }
  check(bytes <= size, "a message holds no more than its bytes");
}

// The bytes that `pieces` say arrive next.
std::size_t next_piece(std::span<const std::uint8_t> pieces, std::size_t& at) {
  return 1 + static_cast<std::size_t>(pieces[at++ % pieces.size()]);
}

// Reads messages one behind the other with one reader; `write` gives back the bytes of the one just read.
template <typename Reader, typename Write>
Outcome read_all(std::string_view stream, std::span<const std::uint8_t> pieces, Reader& reader, const Write& write) {
  Outcome outcome;
  std::size_t begin = 0;
  std::size_t arrived = 0;
  std::size_t piece = 0;
  while (outcome.messages.size() < stream.size() + 1) {
    const Copy input(stream.substr(begin, arrived - begin));
    outcome.end = reader.read(input.view());
    if (outcome.end == Status::malformed) {
      outcome.reason = reader.reason();
      check(!outcome.reason.empty(), "what is malformed has a reason");
      return outcome;
    }
    if (outcome.end == Status::need_more) {
      if (arrived == stream.size()) return outcome;
      arrived = std::min(stream.size(), arrived + next_piece(pieces, piece));
      continue;
    }
    check(reader.size() <= input.view().size(), "a message ends within its input");
    const std::string bytes = write(reader);
    check(bytes == input.view().substr(0, reader.size()), "what was read is written to the same bytes");
    outcome.messages.push_back(bytes);
    begin += reader.size();
    if (reader.size() == 0) return outcome;  // The reply to a MULTI_GET of no keys.
  }
  return outcome;
}

Outcome read_requests(std::string_view stream, std::span<const std::uint8_t> pieces, Dialect dialect,
                      const proto::Limits& limits) {
  proto::RequestReader reader(limits, dialect);
  return read_all(stream, pieces, reader, [&](const proto::RequestReader& read) {
    check_size(read.request().contents, read.size());
    std::string bytes;
    proto::write_request(bytes, read.request(), dialect);
    return bytes;
  });
}

Outcome read_pushes(std::string_view stream, std::span<const std::uint8_t> pieces, proto::PushFormat format,
                    const proto::Limits& limits) {
  proto::PushReader reader(format, limits);
  return read_all(stream, pieces, reader, [&](const proto::PushReader& read) {
    check_size(read.contents(), read.size());
    std::string bytes;
    proto::write_push(bytes, format, read.contents());
    return bytes;
  });
}

// A reader of a reply reads one.
Outcome read_reply(std::string_view stream, std::span<const std::uint8_t> pieces, Op op, std::size_t keys,
                   const proto::Limits& limits) {
  struct Once {
    proto::ReplyReader reader;
    bool done = false;
    Status read(std::string_view input) { return done ? Status::need_more : reader.read(input); }
    std::size_t size() const { return reader.size(); }
    std::string reason() const { return reader.reason(); }
  };
  Once once{proto::ReplyReader(op, keys, limits)};
  return read_all(stream, pieces, once, [&](Once& read) {
    read.done = true;
    check_size(read.reader.contents(), read.size());
    std::string bytes;
    proto::write_reply(bytes, op, read.reader.contents());
    return bytes;
  });
}

void detect(std::string_view stream) {
  std::optional<Dialect> first;
  for (std::size_t size = 0; size <= std::min<std::size_t>(stream.size(), 8); ++size) {
    const auto now = proto::detect_dialect(Copy(stream.substr(0, size)).view());
    check(!first || now == first, "a dialect that was told stays so");
    check(now || size < 5, "five bytes tell the dialect");
    first = now;
  }
}

// Each operation of a dialect, for the number of a choice.
Op chosen_op(std::uint8_t number) {
  static const std::vector<Op> all = [] {
    std::vector<Op> ops = {Op::watch_key, Op::validate};
    for (int code = 0; code < 256; ++code) {
      const auto op = proto::op_from_code(static_cast<std::uint8_t>(code), Dialect::lockstep);
      if (op) ops.push_back(*op);
    }
    return ops;
  }();
  return all[number % all.size()];
}

}  // namespace
}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::fuzz;
  Input input(data, size);
  const std::uint8_t what = input.byte();
  const std::uint8_t detail = input.byte();
  const std::array<std::uint8_t, 2> cut = {input.byte(), input.byte()};
  const std::string_view stream = input.rest();
  const std::array<std::uint8_t, 1> single = {0};
  const std::array<std::uint8_t, 1> large = {255};
  const lockstep::proto::Limits limits = (what & 0x80) != 0 ? kTight : lockstep::proto::Limits{};
  for (const auto& pieces : {std::span<const std::uint8_t>(cut), std::span<const std::uint8_t>(single)}) {
    // A cut of single bytes costs the square of the length.
    if (pieces.size() == 1 && stream.size() > 512) continue;
    switch (what & 0x7f) {
      case 0:
      case 1:
      case 2: {
        const auto dialect = kDialects[what & 0x7f];
        check(read_requests(stream, pieces, dialect, limits) == read_requests(stream, large, dialect, limits),
              "requests are the same however they are cut");
        break;
      }
      case 3: {
        const auto op = chosen_op(detail);
        const std::size_t keys = cut[0] % 4;
        check(read_reply(stream, pieces, op, keys, limits) == read_reply(stream, large, op, keys, limits),
              "a reply is the same however it is cut");
        break;
      }
      case 4:
      case 5: {
        const auto format =
            (what & 1) != 0 ? lockstep::proto::PushFormat::watch_event : lockstep::proto::PushFormat::frame;
        check(read_pushes(stream, pieces, format, limits) == read_pushes(stream, large, format, limits),
              "pushes are the same however they are cut");
        break;
      }
      default: detect(stream); return 0;
    }
  }
  return 0;
}
