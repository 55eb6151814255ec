// SPDX-License-Identifier: Apache-2.0
// The operations of members at the server's sessions, byte for byte, without sockets or clocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "proto/push.h"
#include "tests/unit/membership/member_bench.h"

namespace lockstep::membership::member_session_test {
namespace {

using namespace std::chrono_literals;
using proto::Op;
using store::SessionId;

// A frame as a member reads it.
struct Heard {
  int status = -1;
  std::vector<std::string> list;
  bool operator==(const Heard&) const = default;
};

class MemberSessions : public ::testing::Test {
 protected:
  void open(SessionId id) {
    bench_.connect(id);
    send(id, Op::hello, {{}, {"", "rank", std::string_view(kNonce)}, proto::kVersion});
    ASSERT_EQ(hear(id), (std::vector<Heard>{{proto::kOk, {}}}));
  }
  void send(SessionId id, Op op, const proto::Contents& contents) {
    std::string bytes;
    proto::write_request(bytes, {op, contents}, proto::Dialect::lockstep);
    for (const char byte : bytes) bench_.send(id, {&byte, 1});  // in pieces, so that no request depends on the cut
  }
  void register_member(SessionId id, std::string_view rank) {
    send(id, Op::register_member, {{"scope"}, {rank, "3", kProcess, ""}, 0});
  }
  std::vector<Heard> hear(SessionId id) {
    const std::string bytes = bench_.take(id);
    std::vector<Heard> frames;
    proto::PushReader reader(proto::PushFormat::frame);
    for (std::string_view rest = bytes; !rest.empty(); rest.remove_prefix(reader.size())) {
      if (reader.read(rest) != proto::Status::ok) {
        ADD_FAILURE() << "no frame: " << ::testing::PrintToString(rest);
        break;
      }
      const auto& values = reader.contents().values;
      frames.push_back({static_cast<int>(reader.contents().number), {values.begin(), values.end()}});
    }
    return frames;
  }

  static constexpr const char* kProcess = "host n1\npid 7\nboot_id b\npid_namespace 1\n";
  const std::string kNonce = std::string(proto::kNonceBytes, 'n');
  MemberBench bench_;
};

TEST_F(MemberSessions, ARegistrationIsAnsweredByWhoHostsTheStore) {
  open(1);
  register_member(1, "0");
  EXPECT_EQ(hear(1), (std::vector<Heard>{{proto::kOk, {"host server\npid 1\nboot_id b\npid_namespace \n"}}}));
  send(1, Op::heartbeat, {{}, {""}, 41});
  EXPECT_EQ(hear(1), (std::vector<Heard>{{proto::kPushBeat, {}}}));
  bench_.members.set_traced(true);
  send(1, Op::heartbeat, {{}, {""}, 41});
  EXPECT_EQ(hear(1), (std::vector<Heard>{{proto::kPushBeat, {"traced"}}}));
}

TEST_F(MemberSessions, WhatIsWrongIsTheAnswerAndTheConnectionStays) {
  open(1);
  send(1, Op::heartbeat, {{}, {""}, 0});
  EXPECT_EQ(hear(1).at(0).status, proto::kRefused);
  register_member(1, "3");
  EXPECT_EQ(hear(1).at(0).status, proto::kRefused);
  register_member(1, "2");
  EXPECT_EQ(hear(1).at(0).status, proto::kOk);
  open(2);
  register_member(2, "2");
  EXPECT_EQ(hear(2).at(0).status, proto::kRefused);
  bench_.disconnect(2);
  EXPECT_TRUE(hear(1).empty()) << "who was refused is nobody's loss";
}

TEST_F(MemberSessions, EachIsToldWhatBecomesOfTheOthers) {
  for (const SessionId id : {1, 2, 3}) {
    open(id);
    register_member(id, std::to_string(id - 1));
    hear(id);
  }
  // The status, and the fields without a cause.
  const auto told = [this](SessionId id) {
    std::vector<Heard> frames = hear(id);
    for (Heard& frame : frames) frame.list.resize(std::min<std::size_t>(frame.list.size(), 2));
    return frames;
  };
  send(3, Op::report, {{}, {"out of disk"}, 0});
  EXPECT_EQ(told(3), (std::vector<Heard>{{proto::kOk, {}}, {proto::kPushFailed, {"2", "1"}}}))
      << "its answer, then what all are told";
  bench_.send(3, std::string(1, '\x7f'));  // no operation: the server closes it
  EXPECT_TRUE(bench_.closed(3));
  bench_.disconnect(2);
  EXPECT_EQ(told(1), (std::vector<Heard>{{proto::kPushFailed, {"2", "1"}}, {proto::kPushLost, {"1", "2"}}}));
  bench_.pass(100ms, 30);
  EXPECT_EQ(told(1), (std::vector<Heard>{{proto::kPushBeat, {}}, {proto::kPushSilent, {"0", "3"}}}))
      << "to see whether its host acknowledges anything; itself: it is told why it is alone";
}

TEST_F(MemberSessions, AGoodbyeAndAWord) {
  for (const SessionId id : {1, 2}) {
    open(id);
    register_member(id, std::to_string(id - 1));
    hear(id);
  }
  send(1, Op::say, {{"/g"}, {"1", "word"}, 0});
  send(1, Op::goodbye, {{}, {}, 41});
  EXPECT_EQ(hear(1), (std::vector<Heard>{{proto::kOk, {}}, {proto::kOk, {}}}));
  bench_.disconnect(1);
  bench_.pass(100ms, 1);
  EXPECT_EQ(hear(2), (std::vector<Heard>{{proto::kPushWord, {"/g", "word"}}, {proto::kPushLeft, {"0", "41"}}}));
}

}  // namespace
}  // namespace lockstep::membership::member_session_test
