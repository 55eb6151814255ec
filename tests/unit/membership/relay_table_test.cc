// SPDX-License-Identifier: Apache-2.0
// A relay's table in front of the store's, with clocks of their own and without sockets.
#include "runtime/membership/relay_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "runtime/membership/member_service.h"
#include "runtime/membership/store_event.h"
#include "tests/support/cause_of.h"
#include "tests/support/messages.h"

namespace lockstep::membership::relay_table_test {
namespace {

using lockstep::testing::expect_cause;
using lockstep::testing::expect_message;
using namespace std::chrono_literals;
using proto::Op;
using store::SessionId;

constexpr int kWorld = 4;

ProcessInfo process(const std::string& host, int pid) { return {.host = host, .pid = pid, .boot_id = host}; }

// The store, a member of its own with connection 1, and a launcher with connection 2 that carries two others.
class Relayed : public ::testing::Test {
 protected:
  static constexpr SessionId kNeighbour = 1;
  static constexpr SessionId kLauncher = 2;

  void SetUp() override {
    relay_.observe(now_);
    store_.table().observe(now_);
    ask_store(kNeighbour, "s", 0, process("h0", 10));
    ask_store(kLauncher, "agents", 1, process("h1", 20));
  }
  std::string bytes(Op op, const proto::Contents& contents) {
    std::string text;
    proto::write_request(text, {op, contents});
    return text;
  }
  template <typename Serve>
  auto with_request(const std::string& text, Serve serve) {
    proto::RequestReader reader({}, proto::Dialect::lockstep);
    EXPECT_EQ(reader.read(text), proto::Status::ok);
    return serve(reader.request());
  }
  std::string registration(const std::string& scope, int rank, const ProcessInfo& who) {
    const std::string number = std::to_string(rank);
    const std::string world = std::to_string(kWorld);
    const std::string info = encode(who);
    return bytes(Op::register_member, {{scope}, {number, world, info, ""}, 0});
  }
  void ask_store(SessionId id, const std::string& scope, int rank, const ProcessInfo& who) {
    const auto frame =
        with_request(registration(scope, rank, who), [&](const auto& request) { return store_.serve(id, request); });
    ASSERT_EQ(frame.status, proto::kOk);
  }
  // Of a member of the relay; the answer may come from the store, with exchange().
  std::optional<store::Frame> ask(SessionId id, const std::string& request) {
    return with_request(request, [&](const auto& read) { return relay_.serve(id, read); });
  }
  std::optional<store::Frame> beat(SessionId id, std::int64_t sequence, const std::string& flags = "") {
    return ask(id, bytes(Op::heartbeat, {{}, {flags}, sequence}));
  }
  void enter(SessionId id, int rank) {
    EXPECT_FALSE(ask(id, registration("s", rank, process("h1", 20 + rank)))) << "the store answers";
  }
  void enter_both() {
    enter(7, 2);
    enter(8, 3);
    exchange();
  }
  // What the relay has for the store, and what the store has for anybody.
  int exchange() {
    const auto requests = relay_.take_requests();
    if (!requests.empty()) {
      const auto answer =
          with_request(write_requests(requests), [&](const auto& request) { return store_.serve(kLauncher, request); });
      EXPECT_EQ(answer.status, proto::kPushForwarded) << ::testing::PrintToString(answer.list);
      deliver(answer);
    }
    for (auto& [to, frame] : MemberService::frames_of(store_.table().take_pushes())) {
      ++pushed_[to];
      if (to == kLauncher && frame.status == proto::kPushForwarded) {
        deliver(frame);
      } else {
        heard_[to].push_back(frame);
      }
    }
    return static_cast<int>(requests.size());
  }
  void deliver(const store::Frame& frame) {
    const auto frames = read_frames(std::vector<std::string_view>(frame.list.begin(), frame.list.end()));
    ASSERT_TRUE(frames);
    relay_.deliver(*frames);
    take_frames();
  }
  void take_frames() {
    for (auto& [to, frame] : relay_.take_frames()) heard_[to].push_back(frame);
  }
  // Both observers run; `beating` members of the relay say something new each time.
  void run(std::chrono::milliseconds time, const std::vector<SessionId>& beating) {
    for (auto done = 0ms; done < time; done += 100ms) {
      now_ += 100ms;
      ++sequence_;
      relay_.observe(now_);
      for (const SessionId id : beating) beat(id, sequence_);
      relay_.check_members();
      take_frames();
      exchange();
      store_.table().observe(now_);
      store_.table().heartbeat(kNeighbour, sequence_, "");
      store_.table().heartbeat(kLauncher, 0, "");
      store_.table().check_members();
      exchange();
    }
  }
  // The launcher and its relay stand still.
  void run_store(std::chrono::milliseconds time) {
    store_.table().observe(now_ += time);
    store_.table().heartbeat(kNeighbour, 0, "");
    store_.table().check_members();
  }
  std::vector<Cause> causes() {
    std::vector<Cause> result;
    for (const MemberNews& news : store_.table().take_news()) {
      if (news.cause) result.push_back(*news.cause);
    }
    return result;
  }
  MemberPosition position_of(int rank) {
    for (const MemberView& view : store_.table().members()) {
      if (view.scope == "s" && view.info.rank == rank) return view.position;
    }
    return {};
  }
  int heard_of(SessionId id, std::uint8_t status) {
    return static_cast<int>(std::count_if(heard_[id].begin(), heard_[id].end(),
                                          [&](const store::Frame& frame) { return frame.status == status; }));
  }

  MembershipTable::Time now_{1000s};
  std::int64_t sequence_ = 0;
  std::map<int, ProcessState> states_;  // by pid, as the relay's host knows them
  RelayTable relay_{process("h1", 20), {}, {.process = [this](const ProcessInfo& of) {
                      return states_.contains(of.pid) ? states_[of.pid] : ProcessState::running;
                    }}};
  MemberService store_{process("h0", 1), {.process = [](const ProcessInfo&) { return ProcessState::unknown; }}};
  std::map<SessionId, std::vector<store::Frame>> heard_;
  std::map<SessionId, int> pushed_;  // frames over each of the store's connections
};

TEST_F(Relayed, ARegistrationIsTheStoresAndTheRelayIsWhoMembersWatch) {
  enter(7, 2);
  enter(8, 0);
  EXPECT_TRUE(heard_[7].empty());
  exchange();
  ASSERT_EQ(heard_[7].size(), 1u);
  EXPECT_EQ(heard_[7][0].status, proto::kOk);
  EXPECT_EQ(heard_[7][0].list, (std::vector<std::string>{encode(process("h1", 20)), std::string(kRelayed)}));
  // A duplicate.
  ASSERT_EQ(heard_[8].size(), 1u);
  EXPECT_EQ(heard_[8][0].status, proto::kRefused);
  ASSERT_TRUE(beat(8, 1));
  EXPECT_EQ(beat(8, 1)->status, proto::kRefused) << "it is not a member";
}

TEST_F(Relayed, HeartbeatsAreAnsweredHereAndGoTogetherWhereTheySaySomethingNew) {
  enter_both();
  relay_.observe(now_ += 500ms);
  EXPECT_EQ(beat(7, 5)->status, proto::kPushBeat);
  EXPECT_EQ(beat(7, 6)->status, proto::kPushBeat);
  EXPECT_EQ(beat(8, 6, "in=all_reduce step=2 done=3")->status, proto::kPushBeat);
  EXPECT_EQ(exchange(), 0) << "not each by itself";
  relay_.check_members();
  EXPECT_EQ(exchange(), 2) << "the last of each";
  EXPECT_EQ(position_of(2).sequence, 6);
  EXPECT_EQ(position_of(3), (MemberPosition{.sequence = 6, .collective = "all_reduce", .step = 2, .steps_done = 3}));
  relay_.observe(now_ += 500ms);
  beat(7, 6);
  beat(8, 7);
  relay_.check_members();
  EXPECT_EQ(exchange(), 1) << "of who has moved";
  EXPECT_EQ(position_of(3).sequence, 7);
}

TEST_F(Relayed, AnswersToHeartbeatsSayThatTheStoreOrTheRelayIsInADebugger) {
  enter_both();
  const auto answers = [this] {
    return std::pair(with_request(bytes(Op::heartbeat, {{}, {""}, 1}),
                                  [&](const auto& request) { return store_.serve(kNeighbour, request); })
                         .list,
                     beat(7, 1)->list);
  };
  using List = std::vector<std::string>;
  EXPECT_EQ(answers(), std::pair(List(), List()));
  store_.set_traced(true);
  relay_.set_traced(true);
  EXPECT_EQ(answers(), std::pair(List{"traced"}, List{"traced"}));
}

TEST_F(Relayed, WordsOfAGroupGoOnceOverTheConnectionOfAllThatItCarries) {
  enter_both();
  pushed_.clear();
  EXPECT_FALSE(ask(7, bytes(Op::say, {{"/groups/1"}, {"0 2 3", "hello"}, 0})));
  EXPECT_FALSE(ask(8, bytes(Op::say, {{""}, {"", "to all"}, 0})));
  exchange();
  for (const SessionId id : {7, 8, int{kNeighbour}}) {
    const auto& heard = heard_[id];
    ASSERT_EQ(heard_of(id, proto::kPushWord), 2);
    EXPECT_EQ(heard[heard.size() - 2].list, (std::vector<std::string>{"/groups/1", "hello"}));
    EXPECT_EQ(heard.back().list, (std::vector<std::string>{"", "to all"}));
  }
  EXPECT_EQ(pushed_[kLauncher], 2) << "and not one for each rank";
  ask(7, bytes(Op::say, {{"/groups/1"}, {"2", "to one"}, 0}));
  exchange();
  EXPECT_EQ(heard_of(7, proto::kPushWord), 3);
  EXPECT_EQ(heard_of(8, proto::kPushWord), 2);
  ASSERT_TRUE(ask(9, bytes(Op::say, {{""}, {"", "of nobody"}, 0})));
}

TEST_F(Relayed, AReportComesBehindWhereAllOfTheHostHaveCome) {
  enter_both();
  beat(8, 41);
  const std::string cause = encode(Cause{.kind = Cause::Kind::failed, .rank = 2, .text = "no memory"}, 1000);
  EXPECT_FALSE(ask(7, bytes(Op::report, {{}, {cause}, 0})));
  EXPECT_EQ(heard_of(7, proto::kOk), 1) << "the registration's";
  exchange();
  EXPECT_EQ(heard_of(7, proto::kOk), 2);
  EXPECT_EQ(position_of(3).sequence, 41);
  const auto told = causes();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].text, "no memory");
  EXPECT_EQ(told[0].reporter, 2);
}

TEST_F(Relayed, AFailureIsPushedOncePerHostAndHeardByEachMember) {
  enter_both();
  pushed_.clear();
  store_.table().ended(kNeighbour);
  exchange();
  EXPECT_EQ(pushed_[kLauncher], 1);
  for (const SessionId id : {7, 8}) ASSERT_EQ(heard_of(id, proto::kPushLost), 1);
  EXPECT_EQ(heard_[7].back().list, heard_[8].back().list);
  // Who comes later hears of it too, behind its answer.
  enter(9, 1);
  exchange();
  ASSERT_EQ(heard_[9].size(), 2u);
  EXPECT_EQ(heard_[9][0].status, proto::kOk);
  EXPECT_EQ(heard_[9][1].list, heard_[7].back().list);
}

TEST_F(Relayed, AnEndWithoutAGoodbyeIsALossAndWithOneItIsNone) {
  enter_both();
  beat(8, 12);
  EXPECT_FALSE(ask(7, bytes(Op::goodbye, {{}, {}, 12})));
  exchange();
  EXPECT_EQ(heard_of(7, proto::kOk), 2) << "it is answered";
  relay_.ended(7);
  EXPECT_EQ(exchange(), 0);
  EXPECT_TRUE(causes().empty());
  relay_.ended(8);
  exchange();
  const auto told = causes();
  ASSERT_EQ(told.size(), 1u);
  expect_cause(told[0], {.kind = Cause::Kind::lost, .rank = 3, .host = "h1", .pid = 23, .sequence = 12});
  EXPECT_EQ(heard_of(kNeighbour, proto::kPushLost), 1);
}

TEST_F(Relayed, SilenceIsJudgedByTheRelayWhichCanAskTheKernel) {
  enter_both();
  states_[22] = ProcessState::traced;
  run(10s, {8});
  EXPECT_TRUE(causes().empty());
  states_[22] = ProcessState::running;
  run(100ms, {8});
  states_[22] = ProcessState::stopped;
  run(3s, {8});
  const auto told = causes();
  ASSERT_EQ(told.size(), 1u);
  expect_cause(told[0], {.kind = Cause::Kind::silent,
                         .rank = 2,
                         .host = "h1",
                         .pid = 22,
                         .text = "its process is stopped (SIGSTOP or Ctrl-Z)"});
  for (const SessionId id : {7, 8}) EXPECT_EQ(heard_of(id, proto::kPushSilent), 1) << "itself too, should it go on";
  EXPECT_EQ(heard_of(kNeighbour, proto::kPushSilent), 1);
}

// The store does not count the time in which a launcher was stopped for less than makes it silent itself, and that one
// does not count it either.
TEST_F(Relayed, ARelayThatStoodStillAccusesNobody) {
  enter(7, 2);
  enter(8, 3);
  run(1s, {7, 8});
  for (int i = 0; i < 10; ++i) run_store(180ms);
  exchange();
  relay_.observe(now_);
  relay_.check_members();
  exchange();
  store_.table().heartbeat(kLauncher, 0, "");
  run(500ms, {7, 8});
  EXPECT_TRUE(causes().empty());
}

// However it is found out.
void expect_lost_with_launcher(const std::vector<Cause>& told, Cause::Kind kind) {
  ASSERT_EQ(told.size(), 3u);
  expect_cause(told[0], {.kind = kind, .pid = 20});
  for (const int rank : {2, 3}) {
    const Cause& cause = told[static_cast<std::size_t>(rank - 1)];
    expect_cause(cause, {.kind = Cause::Kind::lost, .rank = rank, .host = "h1", .pid = 20 + rank});
    expect_message("membership", "rank " + std::to_string(rank), cause.text);
  }
}

TEST_F(Relayed, ALauncherThatIsLostIsToldFirstAndThenItsRanksWithTheirHost) {
  enter(7, 3);
  enter(8, 2);
  exchange();
  store_.table().ended(kLauncher);
  exchange();
  expect_lost_with_launcher(causes(), Cause::Kind::lost);
  EXPECT_EQ(heard_of(kNeighbour, proto::kPushLost), 2);
  EXPECT_EQ(store_.table().present(), 1u) << "the neighbour";
}

TEST_F(Relayed, ALauncherThatIsSilentIsToldFirstAndThenItsRanks) {
  enter_both();
  for (int i = 0; i < 25; ++i) run_store(100ms);
  exchange();
  expect_lost_with_launcher(causes(), Cause::Kind::silent);
  for (const SessionId id : {7, 8}) EXPECT_EQ(heard_of(id, proto::kPushLost), 2) << "should the launcher go on";
}

TEST_F(Relayed, WhatBecomesOfTheStoreIsTold) {
  enter(7, 2);
  exchange();
  enter(8, 3);
  relay_.deliver(MemberEvent{.kind = MemberEvent::Kind::store_lost,
                             .cause = {.text = "is lost: its connection ended"},
                             .address = "10.0.0.1:29400",
                             .host = process("h0", 1)});
  take_frames();
  ASSERT_EQ(heard_of(7, proto::kPushStore), 1);
  EXPECT_EQ(heard_of(8, proto::kRefused), 1) << "its registration is not answered any more";
  EXPECT_EQ(beat(7, 1)->status, proto::kRefused);
}

TEST_F(Relayed, WhatIsNoForwardIsRefused) {
  const auto refused = [&](SessionId from, const std::vector<ForwardedRequest>& requests) {
    return with_request(write_requests(requests), [&](const auto& request) { return store_.serve(from, request); })
        .status;
  };
  const std::string forward = write_requests(std::vector<ForwardedRequest>{{.channel = 1}});
  EXPECT_EQ(refused(99, {{.channel = 1}}), proto::kRefused) << "of no member";
  EXPECT_EQ(refused(kLauncher, {{.channel = 0}}), proto::kRefused);
  EXPECT_EQ(refused(kLauncher, {{.channel = 1, .bytes = "\x91"}}), proto::kRefused) << "half a request";
  EXPECT_EQ(refused(kLauncher, {{.channel = 1, .bytes = forward}}), proto::kPushForwarded);
  const auto inner =
      with_request(bytes(Op::give_up, {{}, {"x"}, 0}), [&](const auto& request) { return store_.serve(1, request); });
  EXPECT_EQ(inner.status, proto::kRefused) << "a member gives up nobody";
}

TEST(Forwarding, AnIdLeadsToItsConnection) {
  const auto id = forwarded_id(77, 12);
  EXPECT_EQ(carrier_of(id), 77u);
  EXPECT_EQ(channel_of(id), 12u);
  EXPECT_EQ(connection_of(id), 77u);
  EXPECT_EQ(carrier_of(77), 0u);
  EXPECT_EQ(connection_of(77), 77u);
}

}  // namespace
}  // namespace lockstep::membership::relay_table_test
