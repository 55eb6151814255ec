// Golden bytes: what PyTorch's client and server exchange, byte for byte, and every way of cutting and hurting them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "proto/proof.h"
#include "proto/push.h"
#include "proto/reply.h"
#include "proto/request.h"

namespace lockstep::proto {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;

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

struct Golden {
  const char* name;
  Request request;
  std::string bytes;
  Contents reply;
  std::string reply_bytes;
};

const std::vector<Golden>& golden() {
  static const std::vector<Golden> table = {
      {"validate", {Op::validate, {{}, {}, kMagic}}, hex("00 ce f7 85 3c"), {}, ""},
      {"ping", {Op::ping, {{}, {}, 24738}}, hex("0d a2 60 00 00"), {{}, {}, 24738}, hex("a2 60 00 00")},
      {"join",
       {Op::add, {{"init/"}, {}, 1}},
       hex("04 05 00 00 00 00 00 00 00 69 6e 69 74 2f 01 00 00 00 00 00 00 00"),
       {{}, {}, 1},
       hex("01 00 00 00 00 00 00 00")},
      {"set",
       {Op::set, {{"/k"}, {"v1"}, 0}},
       hex("01 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 76 31"),
       {},
       ""},
      {"set_empty_value",
       {Op::set, {{"/k"}, {""}, 0}},
       hex("01 02 00 00 00 00 00 00 00 2f 6b 00 00 00 00 00 00 00 00"),
       {},
       ""},
      {"get",
       {Op::get, {{"/k"}, {}, 0}},
       hex("03 02 00 00 00 00 00 00 00 2f 6b"),
       {{}, {"v1"}, 0},
       hex("02 00 00 00 00 00 00 00 76 31")},
      {"add_negative",
       {Op::add, {{"/n"}, {}, -7}},
       hex("04 02 00 00 00 00 00 00 00 2f 6e f9 ff ff ff ff ff ff ff"),
       {{}, {}, -2},
       hex("fe ff ff ff ff ff ff ff")},
      {"check",
       {Op::check, {{"/k", "/zz"}, {}, 0}},
       hex("05 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 03 00 00 00 00 00 00 00 2f 7a 7a"),
       {{}, {}, kNotReady},
       hex("01")},
      {"wait",
       {Op::wait, {{"/k", "/n"}, {}, 0}},
       hex("06 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 2f 6e"),
       {{}, {}, kStopWaiting},
       hex("00")},
      {"wait_for_nothing", {Op::wait, {}}, hex("06 00 00 00 00 00 00 00 00"), {{}, {}, kStopWaiting}, hex("00")},
      {"num_keys", {Op::num_keys, {}}, hex("07"), {{}, {}, 258}, hex("02 01 00 00 00 00 00 00")},
      {"delete_key",
       {Op::delete_key, {{"/k"}, {}, 0}},
       hex("08 02 00 00 00 00 00 00 00 2f 6b"),
       {{}, {}, 1},
       hex("01 00 00 00 00 00 00 00")},
      {"append",
       {Op::append, {{"/k"}, {"v1"}, 0}},
       hex("09 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 76 31"),
       {},
       ""},
      {"compare_set",
       {Op::compare_set, {{"/k"}, {"v1", "v2"}, 0}},
       hex("02 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 76 31 02 00 00 00 00 00 00 00 76 32"),
       {{}, {"v2"}, 0},
       hex("02 00 00 00 00 00 00 00 76 32")},
      {"multi_get",
       {Op::multi_get, {{"/k", "/n"}, {}, 0}},
       hex("0a 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 2f 6e"),
       {{}, {"v1", "5"}, 0},
       hex("02 00 00 00 00 00 00 00 76 31 01 00 00 00 00 00 00 00 35")},
      {"multi_set",
       {Op::multi_set, {{"/k", "/n"}, {"v1", ""}, 0}},
       hex("0b 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 76 31"
           "02 00 00 00 00 00 00 00 2f 6e 00 00 00 00 00 00 00 00"),
       {},
       ""},
      {"cancel_wait", {Op::cancel_wait, {}}, hex("0c"), {{}, {}, kWaitCanceled}, hex("01")},
      {"queue_push",
       {Op::queue_push, {{"/q"}, {"j"}, 0}},
       hex("0e 02 00 00 00 00 00 00 00 2f 71 01 00 00 00 00 00 00 00 6a"),
       {},
       ""},
      {"queue_pop",
       {Op::queue_pop, {{"/q"}, {}, 0}},
       hex("0f 02 00 00 00 00 00 00 00 2f 71"),
       {{}, {"j"}, 1},
       hex("01 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 6a")},
      {"queue_pop_of_an_empty_queue",
       {Op::queue_pop, {{"/q"}, {}, 0}},
       hex("0f 02 00 00 00 00 00 00 00 2f 71"),
       {},
       hex("00 00 00 00 00 00 00 00")},
      {"queue_length",
       {Op::queue_length, {{"/q"}, {}, 0}},
       hex("10 02 00 00 00 00 00 00 00 2f 71"),
       {{}, {}, 3},
       hex("03 00 00 00 00 00 00 00")},
      {"list_keys",
       {Op::list_keys, {}},
       hex("11"),
       {{"/k", "init/"}, {}, 0},
       hex("02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 05 00 00 00 00 00 00 00 69 6e 69 74 2f")},
      {"barrier",
       {Op::barrier, {{"/b"}, {}, 2}},
       hex("12 02 00 00 00 00 00 00 00 2f 62 02 00 00 00 00 00 00 00"),
       {{}, {}, kStopWaiting},
       hex("00")},
  };
  return table;
}

void expect_equal(const Contents& seen, const Contents& wanted) {
  EXPECT_THAT(seen.keys, ElementsAreArray(wanted.keys));
  EXPECT_THAT(seen.values, ElementsAreArray(wanted.values));
  EXPECT_EQ(seen.number, wanted.number);
}

class GoldenTest : public testing::TestWithParam<Golden> {};
INSTANTIATE_TEST_SUITE_P(Protocol, GoldenTest, testing::ValuesIn(golden()),
                         [](const auto& golden_info) { return golden_info.param.name; });

TEST_P(GoldenTest, RequestIsWrittenAsPyTorchDoes) {
  std::string out = "kept";
  write_request(out, GetParam().request);
  EXPECT_EQ(out, "kept" + GetParam().bytes);
}

TEST_P(GoldenTest, ReplyIsWrittenAsPyTorchDoes) {
  std::string out;
  write_reply(out, GetParam().request.op, GetParam().reply);
  EXPECT_EQ(out, GetParam().reply_bytes);
}

TEST_P(GoldenTest, RequestIsReadWholeAndLeavesWhatFollows) {
  RequestReader reader;
  const std::string input = GetParam().bytes + "\x01next";
  for (int round = 0; round < 2; ++round) {  // The second time over what the first left in the reader.
    ASSERT_EQ(reader.read(input), Status::ok);
    EXPECT_EQ(reader.size(), GetParam().bytes.size());
    EXPECT_EQ(reader.request().op, GetParam().request.op);
    expect_equal(reader.request().contents, GetParam().request.contents);
  }
}

TEST_P(GoldenTest, RequestMayBeSplitAtEveryByte) {
  const std::string& bytes = GetParam().bytes;
  for (std::size_t split = 0; split < bytes.size(); ++split) {
    RequestReader reader;
    // Each piece in memory of its own: nothing may be kept of where the bytes were.
    ASSERT_EQ(reader.read(std::string(bytes, 0, split)), Status::need_more) << "split at " << split;
    ASSERT_EQ(reader.read(bytes), Status::ok) << "split at " << split;
    expect_equal(reader.request().contents, GetParam().request.contents);
  }
}

TEST_P(GoldenTest, RequestMayComeByteByByte) {
  const std::string& bytes = GetParam().bytes;
  RequestReader reader;
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_EQ(reader.read(std::string(bytes, 0, size)), Status::need_more) << size;
  }
  ASSERT_EQ(reader.read(bytes), Status::ok);
  expect_equal(reader.request().contents, GetParam().request.contents);
}

TEST_P(GoldenTest, ReplyMayBeSplitAtEveryByte) {
  const std::string& bytes = GetParam().reply_bytes;
  for (std::size_t split = 0; split < bytes.size(); ++split) {
    ReplyReader reader(GetParam().request.op, GetParam().request.contents.keys.size());
    ASSERT_EQ(reader.read(std::string(bytes, 0, split)), Status::need_more) << "split at " << split;
    ASSERT_EQ(reader.read(bytes), Status::ok) << "split at " << split;
    EXPECT_EQ(reader.size(), bytes.size());
    expect_equal(reader.contents(), GetParam().reply);
  }
}

TEST(RequestReader, UnknownOperationIsMalformed) {
  struct Case {
    Dialect dialect;
    std::vector<int> codes;
    std::string name;
  };
  const std::vector<Case> cases = {{Dialect::current, {19, 42, 127, 128, 255}, "torch"},
                                   {Dialect::legacy, {9, 13, 127, 128, 255}, "torch 1.13"},
                                   {Dialect::lockstep, {0, 19, 127, 0x89, 0x94, 255}, "lockstep"}};
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

TEST(RequestReader, EverySingleByteChangeIsReadWithoutHarm) {
  for (const Golden& test : golden()) {
    for (std::size_t place = 0; place < test.bytes.size(); ++place) {
      for (int byte = 0; byte < 256; ++byte) {
        std::string bytes = test.bytes;
        bytes[place] = static_cast<char>(byte);
        RequestReader reader;
        const Status status = reader.read(bytes);
        if (status == Status::ok) {
          EXPECT_LE(reader.size(), bytes.size());
          std::string again;
          write_request(again, reader.request());
          EXPECT_EQ(again, bytes.substr(0, reader.size())) << test.name;
        } else if (status == Status::malformed) {
          EXPECT_FALSE(reader.reason().empty());
        }
      }
    }
  }
}

TEST(ReplyReader, ValueOverTheLimitIsMalformed) {
  ReplyReader reader(Op::get);
  EXPECT_EQ(reader.read(hex("00 00 00 00 00 01 00 00")), Status::malformed);
  EXPECT_EQ(reader.reason(), "reply to GET: bytes in a value: 1099511627776, the limit is 8388608");
}

TEST(ReplyReader, MultiGetOfNothingIsEmpty) {
  ReplyReader reader(Op::multi_get, 0);
  EXPECT_EQ(reader.read(""), Status::ok);
  EXPECT_TRUE(reader.contents().values.empty());
}

TEST(Protocol, EveryCodeHasItsShape) {
  const std::vector<std::pair<Dialect, int>> operations = {
      {Dialect::current, 19}, {Dialect::legacy, 9}, {Dialect::lockstep, 31}};
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
}  // namespace lockstep::proto
