// SPDX-License-Identifier: Apache-2.0
// The operations of members at the server's sessions, byte for byte, without sockets or clocks.
#include <gtest/gtest.h>

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
  const auto refused = hear(2);
  EXPECT_EQ(refused.at(0).status, proto::kRefused);
  EXPECT_NE(refused.at(0).list.at(0).find("two processes are rank 2"), std::string::npos);
  bench_.disconnect(2);
  EXPECT_TRUE(hear(1).empty()) << "who was refused is nobody's loss";
}

TEST_F(MemberSessions, ADisconnectedAClosedAndASilentMember) {
  for (const SessionId id : {1, 2, 3}) {
    open(id);
    register_member(id, std::to_string(id - 1));
    hear(id);
  }
  bench_.disconnect(2);
  auto heard = hear(1);
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].status, proto::kPushLost);
  EXPECT_EQ(heard[0].list.at(0), "1");
  EXPECT_EQ(heard[0].list.at(1), "1");
  EXPECT_EQ(hear(3).size(), 1u);
  bench_.send(3, std::string(1, '\x7f'));  // no operation: the server closes it
  ASSERT_TRUE(bench_.closed(3));
  heard = hear(1);
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].status, proto::kPushLost);
  EXPECT_EQ(heard[0].list.at(0), "2");
  EXPECT_EQ(heard[0].list.at(1), "2");
  bench_.pass(100ms, 30);
  heard = hear(1);
  ASSERT_EQ(heard.size(), 2u);
  EXPECT_EQ(heard[0], (Heard{proto::kPushBeat, {}})) << "to see whether its host acknowledges anything";
  EXPECT_EQ(heard[1].status, proto::kPushSilent);
  EXPECT_EQ(heard[1].list.at(0), "0") << "itself: it is told why it is alone";
}

TEST_F(MemberSessions, AGoodbyeAndAReport) {
  for (const SessionId id : {1, 2, 3}) {
    open(id);
    register_member(id, std::to_string(id - 1));
    hear(id);
  }
  send(1, Op::goodbye, {{}, {}, 41});
  EXPECT_EQ(hear(1), (std::vector<Heard>{{proto::kOk, {}}}));
  bench_.disconnect(1);
  send(3, Op::report, {{}, {"out of disk"}, 0});
  const auto reporter = hear(3);
  ASSERT_EQ(reporter.size(), 2u) << "its answer, then what all are told";
  EXPECT_EQ(reporter[0].status, proto::kOk);
  EXPECT_EQ(reporter[1].status, proto::kPushFailed);
  bench_.pass(100ms, 1);
  const std::string cause = encode(Cause{.kind = Cause::Kind::failed,
                                         .rank = 2,
                                         .reporter = 2,
                                         .host = "n1",
                                         .pid = 7,
                                         .sequence = 0,
                                         .text = "rank 2 (host n1, pid 7) failed: out of disk"});
  EXPECT_EQ(hear(2), (std::vector<Heard>{{proto::kPushFailed, {"2", "1", cause}}, {proto::kPushLeft, {"0", "41"}}}));
}

}  // namespace
}  // namespace lockstep::membership::member_session_test
