// SPDX-License-Identifier: Apache-2.0
// Dialects, codes, limits. The messages themselves, byte for byte: golden_test.cc.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/push.h"
#include "proto/reply.h"
#include "proto/request.h"

namespace lockstep::proto::protocol_test {
namespace {

// "01 0a" to bytes.
std::string hex(std::string_view text) {
  std::string out;
  int digits = 0;
  int value = 0;
  for (const char c : text) {
    if (c == ' ') continue;
    value = value * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
    if (++digits % 2 == 0) {
      out.push_back(static_cast<char>(value));
      value = 0;
    }
  }
  return out;
}

// Why a reader can't read these bytes.
template <typename Reader>
std::string reason_of(Reader reader, const std::string& bytes) {
  return reader.read(bytes) == Status::malformed ? reader.reason() : "it can";
}

TEST(Readers, WhatIsUnknownOrOverALimitIsMalformedBeforeItsBytesArrive) {
  const std::string two_to_40 = hex("00 00 00 00 00 01 00 00");
  const std::string all_ones(8, '\xff');
  const std::pair<std::string, std::string> requests[] = {
      {"\x01" + two_to_40, "SET: bytes in a key: 1099511627776, the limit is 8192"},
      {"\x01" + all_ones, "SET: bytes in a key: 18446744073709551615, the limit is 8192"},
      {"\x03" + hex("01 20 00 00 00 00 00 00"), "GET: bytes in a key: 8193, the limit is 8192"},
      {"\x01" + hex("01 00 00 00 00 00 00 00 6b") + two_to_40,
       "SET: bytes in a value: 1099511627776, the limit is 8388608"},
      {"\x06" + two_to_40, "WAIT: number of keys is 1099511627776, the limit is 131072"},
      {"\x0b" + all_ones, "MULTI_SET: number of keys is 18446744073709551615, the limit is 131072"},
  };
  for (const auto& [bytes, reason] : requests) EXPECT_EQ(reason_of(RequestReader(), bytes), reason);
  const std::pair<Dialect, std::vector<int>> unknown[] = {
      {Dialect::current, {19, 42, 127, 128, 255}},
      {Dialect::legacy, {9, 13, 127, 128, 255}},
      {Dialect::lockstep, {0, 19, 127, 0x84, 0x88, 0x98, 255}},
  };
  for (const auto& [dialect, codes] : unknown) {
    const std::string name = dialect == Dialect::legacy     ? "torch 1.13"
                             : dialect == Dialect::lockstep ? "lockstep"
                                                            : "torch";
    for (const int code : codes) {
      EXPECT_EQ(reason_of(RequestReader({}, dialect), std::string(1, static_cast<char>(code))),
                "unknown operation " + std::to_string(code) + " in the protocol of " + name);
    }
  }
  EXPECT_EQ(reason_of(RequestReader(kGreetingLimits, Dialect::lockstep), hex("80 01 00 00 00 01 04 00 00 00 00 00 00")),
            "HELLO: bytes in a value: 1025, the limit is 1024");
  EXPECT_EQ(reason_of(ReplyReader(Op::get), two_to_40),
            "reply to GET: bytes in a value: 1099511627776, the limit is 8388608");
  EXPECT_EQ(reason_of(ReplyReader(Op::list_keys), hex("01 00 10 00 00 00 00 00")),
            "reply to LIST_KEYS: number of items is 1048577, the limit is 1048576");
  EXPECT_NE(reason_of(ReplyReader(Op::list_keys), all_ones), "it can") << "a negative number";
  EXPECT_EQ(reason_of(ReplyReader(Op::wait_get, 0, {.max_list_items = 2}), hex("00 03 00 00 00 00 00 00 00")),
            "reply to WAIT_GET: number of items is 3, the limit is 2");
  EXPECT_EQ(reason_of(ReplyReader(Op::wait_get, 0, {.max_value_bytes = 3}),
                      hex("00 01 00 00 00 00 00 00 00 04 00 00 00 00 00 00 00")),
            "reply to WAIT_GET: bytes in a value: 4, the limit is 3");
  EXPECT_EQ(reason_of(PushReader(PushFormat::frame, {.max_list_items = 2}), hex("10 03 00 00 00 00 00 00 00")),
            "frame: number of items is 3, the limit is 2");
  EXPECT_EQ(reason_of(PushReader(PushFormat::watch_event, {.max_key_bytes = 1}), hex("01 02 00 00 00 00 00 00 00")),
            "event of a watched key: bytes in a key: 2, the limit is 1");
}

TEST(Readers, WhatIsAtALimitIsRead) {
  const Limits limits{.max_key_bytes = 10, .max_value_bytes = 20, .max_count = 2, .max_message_bytes = 101};
  const std::string key(10, 'k');
  const std::string value(20, 'v');
  std::string bytes;
  write_request(bytes, {Op::multi_set, {{key, key}, {value, value}, 0}});
  ASSERT_EQ(bytes.size(), 1 + 8 + 2 * (8 + 10 + 8 + 20u));
  RequestReader reader(limits);
  ASSERT_EQ(reader.read(bytes), Status::ok);
  EXPECT_EQ(reader.request().contents.values[1], value);
  Limits tight = limits;
  tight.max_message_bytes = 100;
  EXPECT_EQ(reason_of(RequestReader(tight), bytes), "MULTI_SET: bytes in a message: at least 101, the limit is 100");

  std::string greeting;
  write_request(greeting, {Op::hello, {{}, {std::string(1024, 'r'), std::string(1024, 'o'), "n"}, kVersion}});
  EXPECT_EQ(RequestReader(kGreetingLimits, Dialect::lockstep).read(greeting), Status::ok);
  EXPECT_EQ(ReplyReader(Op::wait_get, 0, {.max_list_items = 1})
                .read(hex("00 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00")),
            Status::ok);
  EXPECT_EQ(ReplyReader(Op::queue_pop).read(std::string(8, '\xff')), Status::ok)
      << "an item comes only with a length above zero";
}

TEST(Readers, AnAnnouncedCountAllocatesNothing) {
  // 131072 keys are announced and one byte of the first is there; the reader must just wait.
  const std::string bytes = "\x06" + hex("00 00 02 00 00 00 00 00") + "\x01";
  RequestReader reader;
  EXPECT_EQ(reader.read(bytes), Status::need_more);
  EXPECT_EQ(reader.request().contents.keys.capacity(), 0u);
}

TEST(Protocol, EveryCodeHasItsShape) {
  const std::vector<std::pair<Dialect, int>> operations = {
      {Dialect::current, 19}, {Dialect::legacy, 9}, {Dialect::lockstep, 30}};
  for (const auto& [dialect, wanted] : operations) {
    int known = 0;
    for (int code = 0; code < 256; ++code) {
      const auto op = op_from_code(static_cast<std::uint8_t>(code), dialect);
      if (!op) continue;
      ++known;
      EXPECT_EQ(code_of(*op, dialect), code);
      EXPECT_EQ(shape_of(*op).op, *op);
      if (dialect != Dialect::legacy) {
        EXPECT_EQ(static_cast<int>(*op), code);
      }
    }
    EXPECT_EQ(known, wanted) << name_of(dialect);
  }
}

TEST(Protocol, FirstBytesTellTheDialect) {
  const std::string opening = hex("00 ce f7 85 3c");
  for (std::size_t size = 0; size < opening.size(); ++size) {
    EXPECT_EQ(detect_dialect(opening.substr(0, size)), std::nullopt) << size;
  }
  EXPECT_EQ(detect_dialect(opening), Dialect::current);
  EXPECT_EQ(detect_dialect(opening + "more"), Dialect::current);
  EXPECT_EQ(detect_dialect("\x80"), Dialect::lockstep);
  // A SET of 1.13, whose key has 2 bytes, or 0xce bytes.
  EXPECT_EQ(detect_dialect(hex("00 02")), Dialect::legacy);
  EXPECT_EQ(detect_dialect(hex("00 ce")), std::nullopt);
  EXPECT_EQ(detect_dialect(hex("00 ce 00")), Dialect::legacy);
  EXPECT_EQ(detect_dialect(hex("00 ce f7 85 3d")), Dialect::legacy);
  EXPECT_EQ(detect_dialect("GET / HTTP/1.1"), Dialect::legacy);
  for (int code = 1; code < 256; ++code) {
    EXPECT_EQ(detect_dialect(std::string(1, static_cast<char>(code))),
              code == 0x80 ? Dialect::lockstep : Dialect::legacy);
  }
}

}  // namespace
}  // namespace lockstep::proto::protocol_test
