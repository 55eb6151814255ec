// SPDX-License-Identifier: Apache-2.0
// Dialects, codes, limits. The messages themselves, byte for byte: golden_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "proto/proof.h"
#include "proto/push.h"
#include "proto/reply.h"
#include "proto/request.h"

namespace lockstep::proto::protocol_test {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

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

void expect_equal(const Contents& seen, const Contents& wanted) {
  EXPECT_THAT(seen.keys, ElementsAreArray(wanted.keys));
  EXPECT_THAT(seen.values, ElementsAreArray(wanted.values));
  EXPECT_EQ(seen.number, wanted.number);
}

TEST(RequestReader, UnknownOperationIsMalformed) {
  struct Case {
    Dialect dialect;
    std::vector<int> codes;
    std::string name;
  };
  const std::vector<Case> cases = {{Dialect::current, {19, 42, 127, 128, 255}, "torch"},
                                   {Dialect::legacy, {9, 13, 127, 128, 255}, "torch 1.13"},
                                   {Dialect::lockstep, {0, 19, 127, 0x84, 0x88, 0x98, 255}, "lockstep"}};
  for (const Case& test : cases) {
    for (const int code : test.codes) {
      RequestReader reader({}, test.dialect);
      EXPECT_EQ(reader.read(std::string(1, static_cast<char>(code))), Status::malformed);
      EXPECT_EQ(reader.reason(), "unknown operation " + std::to_string(code) + " in the protocol of " + test.name);
    }
  }
}

TEST(RequestReader, LengthOverTheLimitIsMalformedBeforeItsBytesArrive) {
  struct Case {
    std::string bytes;
    std::string reason;
  };
  const std::string two_to_40 = hex("00 00 00 00 00 01 00 00");
  const std::string all_ones(8, '\xff');
  const std::vector<Case> cases = {
      {"\x01" + two_to_40, "SET: bytes in a key: 1099511627776, the limit is 8192"},
      {"\x01" + all_ones, "SET: bytes in a key: 18446744073709551615, the limit is 8192"},
      {"\x03" + hex("01 20 00 00 00 00 00 00"), "GET: bytes in a key: 8193, the limit is 8192"},
      {"\x01" + hex("01 00 00 00 00 00 00 00 6b") + two_to_40,
       "SET: bytes in a value: 1099511627776, the limit is 8388608"},
      {"\x06" + two_to_40, "WAIT: number of keys is 1099511627776, the limit is 131072"},
      {"\x0b" + all_ones, "MULTI_SET: number of keys is 18446744073709551615, the limit is 131072"},
  };
  for (const Case& test : cases) {
    RequestReader reader;
    EXPECT_EQ(reader.read(test.bytes), Status::malformed);
    EXPECT_EQ(reader.reason(), test.reason);
  }
}

TEST(RequestReader, LargestKeyAndValueAreAccepted) {
  const Limits limits{.max_key_bytes = 10, .max_value_bytes = 20, .max_count = 2, .max_message_bytes = 101};
  const std::string key(10, 'k');
  const std::string value(20, 'v');
  std::string bytes;
  write_request(bytes, {Op::multi_set, {{key, key}, {value, value}, 0}});
  ASSERT_EQ(bytes.size(), 1 + 8 + 2 * (8 + 10 + 8 + 20u));
  RequestReader reader(limits);
  ASSERT_EQ(reader.read(bytes), Status::ok);
  EXPECT_EQ(reader.request().contents.values[1], value);

  RequestReader tight({.max_key_bytes = 10, .max_value_bytes = 20, .max_count = 2, .max_message_bytes = 100});
  EXPECT_EQ(tight.read(bytes), Status::malformed);
  EXPECT_THAT(tight.reason(), HasSubstr("bytes in a message"));
}

TEST(RequestReader, AnnouncedCountAllocatesNothing) {
  // 131072 keys are announced and one byte of the first is there; the reader must just wait.
  const std::string bytes = "\x06" + hex("00 00 02 00 00 00 00 00") + "\x01";
  RequestReader reader;
  EXPECT_EQ(reader.read(bytes), Status::need_more);
  EXPECT_EQ(reader.request().contents.keys.capacity(), 0u);
}

TEST(ReplyReader, ValueOverTheLimitIsMalformed) {
  ReplyReader reader(Op::get);
  EXPECT_EQ(reader.read(hex("00 00 00 00 00 01 00 00")), Status::malformed);
  EXPECT_EQ(reader.reason(), "reply to GET: bytes in a value: 1099511627776, the limit is 8388608");
}

TEST(ReplyReader, ListsAndNamesHaveALimit) {
  ReplyReader names(Op::list_keys);
  EXPECT_EQ(names.read(hex("01 00 10 00 00 00 00 00")), Status::malformed);
  EXPECT_EQ(names.reason(), "reply to LIST_KEYS: number of items is 1048577, the limit is 1048576");
  ReplyReader negative(Op::list_keys);
  EXPECT_EQ(negative.read(std::string(8, '\xff')), Status::malformed);
  ReplyReader list(Op::wait_get, 0, {.max_list_items = 2});
  EXPECT_EQ(list.read(hex("00 03 00 00 00 00 00 00 00")), Status::malformed);
  EXPECT_EQ(list.reason(), "reply to WAIT_GET: number of items is 3, the limit is 2");
  ReplyReader most(Op::wait_get, 0, {.max_list_items = 1});
  EXPECT_EQ(most.read(hex("00 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00")), Status::ok);
  ReplyReader item(Op::wait_get, 0, {.max_value_bytes = 3});
  EXPECT_EQ(item.read(hex("00 01 00 00 00 00 00 00 00 04 00 00 00 00 00 00 00")), Status::malformed);
  EXPECT_EQ(item.reason(), "reply to WAIT_GET: bytes in a value: 4, the limit is 3");
}

TEST(ReplyReader, ItemOfAQueueComesOnlyWithALengthAboveZero) {
  ReplyReader negative(Op::queue_pop);
  ASSERT_EQ(negative.read(std::string(8, '\xff')), Status::ok);
  expect_equal(negative.contents(), {{}, {}, -1});
}

TEST(PushReader, NamesTheLimit) {
  PushReader reader(PushFormat::frame, {.max_list_items = 2});
  EXPECT_EQ(reader.read(hex("10 03 00 00 00 00 00 00 00")), Status::malformed);
  EXPECT_EQ(reader.reason(), "frame: number of items is 3, the limit is 2");
  PushReader event(PushFormat::watch_event, {.max_key_bytes = 1});
  EXPECT_EQ(event.read(hex("01 02 00 00 00 00 00 00 00")), Status::malformed);
  EXPECT_EQ(event.reason(), "event of a watched key: bytes in a key: 2, the limit is 1");
}

TEST(RequestReader, GreetingHasRoomForHelloAndLittleElse) {
  const std::string nonce(kNonceBytes, 'n');
  std::string bytes;
  write_request(bytes, {Op::hello, {{}, {std::string(1024, 'r'), std::string(1024, 'o'), nonce}, kVersion}});
  write_request(bytes, {Op::prove, {{}, {nonce}, 0}});
  RequestReader reader(kGreetingLimits, Dialect::lockstep);
  ASSERT_EQ(reader.read(bytes), Status::ok);
  bytes.erase(0, reader.size());
  ASSERT_EQ(reader.read(bytes), Status::ok);
  EXPECT_EQ(reader.request().op, Op::prove);

  RequestReader large(kGreetingLimits, Dialect::lockstep);
  EXPECT_EQ(large.read(hex("80 01 00 00 00 01 04 00 00 00 00 00 00")), Status::malformed);
  EXPECT_EQ(large.reason(), "HELLO: bytes in a value: 1025, the limit is 1024");
}

TEST(ReplyReader, MultiGetOfNothingIsEmpty) {
  ReplyReader reader(Op::multi_get, 0);
  EXPECT_EQ(reader.read(""), Status::ok);
  EXPECT_TRUE(reader.contents().values.empty());
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

TEST(Protocol, LegacyNumbersAreThoseOf113) {
  const std::vector<Op> in_order = {Op::set,  Op::compare_set, Op::get,       Op::add,       Op::check,
                                    Op::wait, Op::num_keys,    Op::watch_key, Op::delete_key};
  for (std::size_t code = 0; code < in_order.size(); ++code) {
    EXPECT_EQ(op_from_code(static_cast<std::uint8_t>(code), Dialect::legacy), in_order[code]);
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

TEST(PushReader, ReadsFramesOneBehindTheOther) {
  std::string bytes;
  write_reply(bytes, Op::goodbye, {{}, {}, kOk});
  write_push(bytes, PushFormat::frame, {{}, {"2", "1", "connection ended"}, kPushLost});
  EXPECT_EQ(bytes, hex("00 00 00 00 00 00 00 00 00"
                       "10 03 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 32 01 00 00 00 00 00 00 00 31"
                       "10 00 00 00 00 00 00 00") +
                       "connection ended");
  PushReader reader(PushFormat::frame);
  ASSERT_EQ(reader.read(bytes), Status::ok);
  EXPECT_EQ(reader.contents().number, kOk);
  bytes.erase(0, reader.size());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_EQ(reader.read(std::string(bytes, 0, size)), Status::need_more) << size;
  }
  ASSERT_EQ(reader.read(bytes), Status::ok);
  expect_equal(reader.contents(), {{}, {"2", "1", "connection ended"}, kPushLost});
}

TEST(PushReader, ReadsAnEventOfAWatchedKey) {
  std::string bytes;
  write_push(bytes, PushFormat::watch_event, {{"/k"}, {"", "v1"}, kKeyCreated});
  EXPECT_EQ(bytes, hex("01 02 00 00 00 00 00 00 00 2f 6b 00 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 76 31"));
  PushReader reader(PushFormat::watch_event);
  ASSERT_EQ(reader.read(bytes), Status::ok);
  expect_equal(reader.contents(), {{"/k"}, {"", "v1"}, kKeyCreated});
}

TEST(Proof, SidesSignDifferentTextsInWhichNothingCanBeMoved) {
  const std::string a(kNonceBytes, 'a');
  const std::string b(kNonceBytes, 'b');
  EXPECT_EQ(proof_text(Prover::client, a, b, "run", "rank 3"), std::string("lockstep client\0", 16) + a + b +
                                                                   hex("03 00 00 00 00 00 00 00") + "run" +
                                                                   hex("06 00 00 00 00 00 00 00") + "rank 3");
  EXPECT_EQ(proof_text(Prover::server, a, b, "", ""),
            std::string("lockstep server\0", 16) + a + b + hex("00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"));
  EXPECT_NE(proof_text(Prover::client, a, b, "run", "rank 3"), proof_text(Prover::client, a, b, "runr", "ank 3"));
}

}  // namespace
}  // namespace lockstep::proto::protocol_test
