// SPDX-License-Identifier: Apache-2.0
// The server's side of one connection, without sockets: dialects, greeting, waits and their timers, and what it holds.
#include "runtime/store/server/server_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "proto/push.h"
#include "proto/reply.h"
#include "tests/unit/store/server/server_test.h"

namespace lockstep::store::server_session_test {
namespace {

using proto::Dialect;
using proto::Op;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The server without its sockets and its clock.
class Bench : public SessionHost, public ::testing::Test {
 protected:
  ServerSession& session(SessionId id) {
    auto& place = sessions_[id];
    if (!place) place = std::make_unique<ServerSession>(*state_, *this, id);
    return *place;
  }
  void restart(const TcpStoreServerOptions& rules) {
    sessions_.clear();
    state_ = std::make_unique<ServerState>(rules);
  }

  // What a session answers to `bytes`, and what follows from it for the others.
  std::string talk(SessionId id, std::string_view bytes) {
    open_ = session(id).receive(bytes);
    serve_woken();
    return take_output(id);
  }
  std::string take_output(SessionId id) {
    std::string text;
    while (!session(id).output().empty()) {
      text += session(id).output();
      open_ = session(id).sent(session(id).output().size()) && open_;
    }
    return text;
  }
  std::string expire(SessionId id) {
    open_ = session(id).expire();
    return take_output(id);
  }
  std::string close_reason_of(SessionId id) {
    EXPECT_FALSE(open_);
    return session(id).close_reason();
  }
  void serve_woken() {
    for (;;) {
      auto woken = state_->keys.take_woken();
      for (const SessionId id : state_->barriers.take_released()) woken.push_back(id);
      if (woken.empty()) return;
      for (const SessionId id : woken) open_ = session(id).wake() && open_;
    }
  }

  void start_timer(SessionId id, std::chrono::nanoseconds delay) override { timers_[id] = delay; }
  void stop_timer(SessionId id) override { timers_.erase(id); }
  void complain(SessionId, const std::string& what) override { complaint_ = what; }
  ServerExtension::Answer serve_extension(SessionId id, const proto::Request& request) override {
    ++extension_requests_;
    return {.frame = {proto::kOk, {std::to_string(id), std::string(proto::shape_of(request.op).name)}},
            .is_urgent = is_urgent_};
  }

  std::unique_ptr<ServerState> state_ = std::make_unique<ServerState>(TcpStoreServerOptions{});
  std::map<SessionId, std::chrono::nanoseconds> timers_;
  std::string complaint_;
  bool is_urgent_ = false;
  int extension_requests_ = 0;
  bool open_ = true;
  std::map<SessionId, std::unique_ptr<ServerSession>> sessions_;
};

using ServerSessionTest = Bench;

// HELLO and PROVE of a client that knows `secret`.
struct Prover {
  explicit Prover(const Secret& its_secret) : secret(its_secret), greeting(&secret, "run", "rank 1") {}
  std::string proof(const std::string& challenge) {
    return greeting.prove({{}, {std::string_view(challenge).substr(1 + 8 + 8)}, proto::kOk});
  }
  Secret secret;
  ClientGreeting greeting;
};

const Secret kSecret = Secret::parse(std::string(64, '5'));
const Secret kOther = Secret::parse(std::string(64, '6'));

TEST_F(ServerSessionTest, TheFirstBytesTellTheDialect) {
  EXPECT_EQ(talk(1, kGreeting + request(Op::ping, {{}, {}, 7})), std::string("\7\0\0\0", 4));
  EXPECT_EQ(session(1).dialect(), Dialect::current);
  EXPECT_EQ(talk(2, legacy_request(Op::set, {{"/k"}, {"v"}, 0}) + legacy_request(Op::get, {{"/k"}, {}, 0})),
            std::string("\1\0\0\0\0\0\0\0v", 9));
  EXPECT_EQ(session(2).dialect(), Dialect::legacy);
  EXPECT_EQ(talk(3, kHello + request(Op::wait_get, {{"/k"}, {}, -1})), kWelcome + frame(proto::kOk, {"v"}));
  EXPECT_EQ(session(3).dialect(), Dialect::lockstep);
  EXPECT_EQ(session(3).role(), "raw");
  EXPECT_TRUE(open_);
}

TEST_F(ServerSessionTest, ItIsWelcomeWhenItsFirstRequestIsWhole) {
  const std::string set = legacy_request(Op::set, {{"/k"}, {"v"}, 0});
  EXPECT_TRUE(session(1).is_silent());
  for (const std::string* bytes : {&kGreeting, &set, &kHello}) {
    const auto id = static_cast<SessionId>(bytes->size());
    for (std::size_t i = 0; i < bytes->size(); ++i) {
      EXPECT_FALSE(session(id).is_greeted()) << i;
      talk(id, bytes->substr(i, 1));
      EXPECT_FALSE(session(id).is_silent());
    }
    EXPECT_TRUE(session(id).is_greeted());
  }
}

TEST_F(ServerSessionTest, WhatIsNoClientIsToldByItsFirstByte) {
  talk(1, "GET / HTTP/1.1\r\n");
  EXPECT_THAT(close_reason_of(1), HasSubstr("first byte is 0x47"));
}

TEST_F(ServerSessionTest, TorchIsRefusedWhereThereIsASecret) {
  restart({.secret = kSecret});
  for (const std::string& bytes : {kGreeting, legacy_request(Op::set, {{"/k"}, {"v"}, 0}), std::string(1, '\3')}) {
    const auto id = static_cast<SessionId>(bytes.size());
    EXPECT_EQ(talk(id, bytes), "");
    EXPECT_EQ(close_reason_of(id), "torch client refused: use --torch-store");
  }
  EXPECT_EQ(state_->keys.size(), 0u);
}

TEST_F(ServerSessionTest, ASecretIsProvedBeforeAnythingElse) {
  restart({.secret = kSecret, .run_id = "run"});
  Prover prover(kSecret);
  const std::string challenge = talk(1, prover.greeting.hello());
  ASSERT_EQ(challenge.size(), 1 + 8 + 8 + proto::kNonceBytes);
  EXPECT_FALSE(session(1).is_greeted());
  const std::string answer = talk(1, prover.proof(challenge));
  EXPECT_TRUE(session(1).is_greeted());
  EXPECT_EQ(session(1).role(), "rank 1");
  proto::ReplyReader reader(Op::prove);
  ASSERT_EQ(reader.read(answer), proto::Status::ok);
  prover.greeting.check(reader.contents());
  EXPECT_EQ(talk(1, request(Op::ping, {{}, {}, 9})), std::string("\x9\0\0\0", 4));
}

TEST_F(ServerSessionTest, NothingIsAnsweredBeforeTheProof) {
  restart({.secret = kSecret});
  Prover prover(kSecret);
  SessionId id = 0;
  for (const std::string& early : {request(Op::num_keys), request(Op::set, {{"/k"}, {"v"}, 0}), request(Op::ping),
                                   request(Op::set_acked, {{"/k"}, {"v"}, 0}), request(Op::cancel_wait),
                                   request(Op::report, {{}, {"x"}, 0}), kHello}) {
    const std::string challenge = talk(++id, prover.greeting.hello());
    EXPECT_EQ(talk(id, early), "") << id;
    EXPECT_THAT(close_reason_of(id),
                ::testing::AnyOf(HasSubstr("before it has proved"), HasSubstr("HELLO out of its turn")));
  }
  // PROVE before HELLO, and what is too long for a greeting.
  EXPECT_EQ(talk(++id, prover.proof(frame(proto::kOk, {std::string(32, 'n')}))), "");
  talk(++id, request(Op::hello, {{}, {std::string(2000, 'r'), "", std::string(32, 'n')}, proto::kVersion}));
  EXPECT_THAT(close_reason_of(id), HasSubstr("HELLO: bytes in a value: 2000, the limit is 1024"));
  EXPECT_EQ(state_->keys.size(), 0u);
}

TEST_F(ServerSessionTest, AWrongSecretIsAnsweredAfterADelayAndNothingElseIsTaken) {
  restart({.secret = kSecret, .refusal_delay = milliseconds(700)});
  Prover prover(kOther);
  const std::string challenge = talk(1, prover.greeting.hello());
  EXPECT_EQ(talk(1, prover.proof(challenge) + request(Op::num_keys)), "");
  EXPECT_TRUE(open_);
  EXPECT_EQ(timers_.at(1), milliseconds(700));
  EXPECT_THAT(complaint_, AllOf(HasSubstr("wrong secret"), HasSubstr("rank 1")));
  EXPECT_FALSE(session(1).wants_input());
  EXPECT_EQ(talk(1, request(Op::num_keys)), "");
  EXPECT_EQ(expire(1), frame(proto::kRefused, {"wrong secret"}));
  EXPECT_FALSE(open_);
  EXPECT_EQ(session(1).close_reason(), "") << "the log has its line already";
}

TEST_F(ServerSessionTest, AnOldProofIsRefused) {
  restart({.secret = kSecret});
  Prover prover(kSecret);
  const std::string hello = prover.greeting.hello();
  const std::string proof = prover.proof(talk(1, hello));
  EXPECT_EQ(talk(1, proof).size(), 1 + 8 + 8 + 32u);
  talk(2, hello);
  EXPECT_EQ(talk(2, proof), "");
  EXPECT_THAT(complaint_, HasSubstr("wrong secret"));
}

TEST_F(ServerSessionTest, GreetingsMayBeSplitAnywhere) {
  restart({.secret = kSecret});
  Prover prover(kSecret);
  std::string challenge;
  for (const char byte : prover.greeting.hello()) challenge += talk(1, std::string_view(&byte, 1));
  std::string answer;
  for (const char byte : prover.proof(challenge)) answer += talk(1, std::string_view(&byte, 1));
  EXPECT_EQ(answer.size(), 1 + 8 + 8 + 32u);
  EXPECT_TRUE(session(1).is_greeted());
}

TEST_F(ServerSessionTest, WaitGetAnswersAtOnceOrWhenAllAreThere) {
  talk(2, kHello);
  EXPECT_EQ(talk(1, kHello + request(Op::wait_get, {{"/a", "/b"}, {}, 5000})), kWelcome);
  EXPECT_EQ(timers_.at(1), milliseconds(5000));
  EXPECT_EQ(talk(2, request(Op::multi_set, {{"/a", "/c"}, {"A", "C"}, 0})), "");
  EXPECT_EQ(take_output(1), "");
  EXPECT_EQ(talk(2, request(Op::set_acked, {{"/b"}, {"B"}, 0})), frame(proto::kOk));
  EXPECT_EQ(take_output(1), frame(proto::kOk, {"A", "B"}));
  EXPECT_TRUE(timers_.empty());
  EXPECT_EQ(talk(1, request(Op::wait_get, {{"/b", "/a", "/b"}, {}, 0})), frame(proto::kOk, {"B", "A", "B"}));
  EXPECT_EQ(talk(1, request(Op::wait_get, {{}, {}, -1})), frame(proto::kOk));
}

TEST_F(ServerSessionTest, WaitGetTellsWhatIsMissingAtItsDeadline) {
  talk(2, kHello + request(Op::set_acked, {{"/b"}, {""}, 0}));
  EXPECT_EQ(talk(1, kHello + request(Op::wait_get, {{"/a", "/b", "/c"}, {}, 50})), kWelcome);
  EXPECT_EQ(expire(1), frame(proto::kMissing, {"/a", "/c"}));
  EXPECT_EQ(talk(1, request(Op::wait_get, {{"/b", "/c"}, {}, 0})), frame(proto::kMissing, {"/c"}));
  // What comes later is not for that wait.
  talk(2, request(Op::multi_set, {{"/a", "/c"}, {"", ""}, 0}));
  EXPECT_EQ(take_output(1), "");
  EXPECT_EQ(talk(1, request(Op::ping, {{}, {}, 1})), std::string("\1\0\0\0", 4));
}

TEST_F(ServerSessionTest, WaitGetWaitsOnIfAKeyGoesBeforeItIsRead) {
  EXPECT_EQ(talk(1, kHello + request(Op::wait_get, {{"/k"}, {}, -1})), kWelcome);
  talk(2, kGreeting + request(Op::set, {{"/k"}, {"1"}, 0}) + request(Op::delete_key, {{"/k"}, {}, 0}));
  EXPECT_EQ(take_output(1), "");
  talk(2, request(Op::set, {{"/k"}, {"2"}, 0}));
  EXPECT_EQ(take_output(1), frame(proto::kOk, {"2"}));
}

TEST_F(ServerSessionTest, TorchsQueueOperations) {
  const auto number = [](char value) { return std::string(1, value) + std::string(7, '\0'); };
  EXPECT_EQ(talk(1, kGreeting + request(Op::queue_pop, {{"/q"}, {}, 0})), number(0));
  EXPECT_EQ(talk(1, request(Op::wait, {{"/q"}, {}, 0})), "");
  talk(2, kGreeting + request(Op::queue_push, {{"/q"}, {"j"}, 0}) + request(Op::queue_push, {{"/q"}, {"k"}, 0}));
  EXPECT_EQ(take_output(1), std::string(1, '\0'));
  EXPECT_EQ(talk(1, request(Op::queue_length, {{"/q"}, {}, 0})), number(2));
  EXPECT_EQ(talk(1, request(Op::check, {{"/q"}, {}, 0})), std::string(1, '\0'));
  EXPECT_EQ(talk(1, request(Op::queue_pop, {{"/q"}, {}, 0})), number(2) + number(1) + "j");
  EXPECT_EQ(talk(1, request(Op::queue_pop, {{"/q"}, {}, 0})), number(1) + number(1) + "k");
  EXPECT_EQ(talk(1, request(Op::check, {{"/q"}, {}, 0})), std::string(1, '\1'));
}

TEST_F(ServerSessionTest, AWokenWaiterThatDoesNotPopLeavesTheItemToTheNext) {
  const std::string wait = kGreeting + request(Op::wait, {{"/q"}, {}, 0});
  for (const SessionId id : {1, 2, 3}) EXPECT_EQ(talk(id, wait), "");
  talk(4, kGreeting + request(Op::queue_push, {{"/q"}, {"item"}, 0}));
  EXPECT_EQ(take_output(1), std::string(1, '\0'));
  EXPECT_EQ(take_output(2), "");
  sessions_.erase(1);
  serve_woken();
  EXPECT_EQ(take_output(2), std::string(1, '\0'));
  EXPECT_EQ(take_output(3), "");
  talk(2, request(Op::num_keys));
  EXPECT_EQ(take_output(3), std::string(1, '\0'));
}

TEST_F(ServerSessionTest, TorchsBarrierCountsHeadsAndCanBeCancelled) {
  const std::string barrier = request(Op::barrier, {{"/b"}, {}, 2});
  EXPECT_EQ(talk(1, kGreeting + barrier), "");
  EXPECT_EQ(talk(1, request(Op::cancel_wait)), "\1");
  EXPECT_EQ(talk(2, kGreeting + barrier), "");
  EXPECT_EQ(talk(1, barrier), std::string(1, '\0'));
  EXPECT_EQ(take_output(2), std::string(1, '\0'));
  talk(3, kGreeting + barrier);
  talk(4, kGreeting + request(Op::barrier, {{"/b"}, {}, 3}));
  EXPECT_THAT(close_reason_of(4), HasSubstr("3 ranks"));
}

TEST_F(ServerSessionTest, EveryWaitCanBeCancelled) {
  talk(1, kHello);
  for (const std::string& wait : {request(Op::wait, {{"/k"}, {}, 0}), request(Op::wait_get, {{"/k"}, {}, 100}),
                                  request(Op::barrier, {{"/k"}, {}, 2})}) {
    EXPECT_EQ(talk(1, wait), "");
    EXPECT_EQ(talk(1, request(Op::cancel_wait)), "\1");
    EXPECT_TRUE(timers_.empty());
  }
  EXPECT_EQ(talk(1, request(Op::cancel_wait)), "\1") << "also where nothing waits";
  talk(2, kGreeting + request(Op::set, {{"/k"}, {"v"}, 0}) + request(Op::queue_push, {{"/k"}, {"v"}, 0}));
  EXPECT_EQ(take_output(1), "");
}

TEST_F(ServerSessionTest, ALegacyClientsRequestBehindAnOpenWaitClosesIt) {
  EXPECT_EQ(talk(1, legacy_request(Op::wait, {{"/k"}, {}, 0})), "");
  EXPECT_TRUE(open_);
  EXPECT_EQ(talk(1, legacy_request(Op::add, {{"/n"}, {}, 42})), "");
  EXPECT_THAT(close_reason_of(1), HasSubstr("while its WAIT is open"));
  EXPECT_EQ(state_->keys.find("/n"), nullptr);
  // One that waited in vain and asks again in time is fine.
  EXPECT_EQ(talk(2, legacy_request(Op::wait, {{"/k"}, {}, 0})), "");
  open_ = true;
  talk(3, legacy_request(Op::set, {{"/k"}, {"v"}, 0}));
  EXPECT_EQ(take_output(2), std::string(1, '\0'));
  EXPECT_EQ(talk(2, legacy_request(Op::add, {{"/n"}, {}, 2})), std::string("\2\0\0\0\0\0\0\0", 8));
  EXPECT_TRUE(open_);
}

TEST_F(ServerSessionTest, WatchesAreConfirmedAndPushed) {
  EXPECT_EQ(talk(1, legacy_request(Op::watch_key, {{"/k"}, {}, 0})), "\3");
  const std::string before = "old";
  session(1).push_watch_event({{"/k"}, {before, ""}, proto::kKeyDeleted});
  std::string expected;
  proto::write_push(expected, proto::PushFormat::watch_event, {{"/k"}, {"old", ""}, proto::kKeyDeleted});
  EXPECT_EQ(take_output(1), expected);
  EXPECT_EQ(state_->legacy.watchers("/k"), std::vector<std::uint64_t>{1});
  sessions_.erase(1);
  EXPECT_TRUE(state_->legacy.watchers("/k").empty());
}

TEST_F(ServerSessionTest, MembersOperationsGoToTheHost) {
  EXPECT_EQ(talk(7, kHello + request(Op::report, {{}, {"cause"}, 0})), kWelcome + frame(proto::kOk, {"7", "REPORT"}));
  session(7).push({proto::kPushLeft, {"3", "41"}});
  EXPECT_EQ(take_output(7), frame(proto::kPushLeft, {"3", "41"}));
}

TEST_F(ServerSessionTest, OwnOperationsAnswerALimitAndTorchsAreClosedByIt) {
  restart({.limits = {.max_value_bytes = 4}, .max_keys = 1});
  EXPECT_EQ(talk(1, kHello + request(Op::set_acked, {{"/a"}, {"v"}, 0})), kWelcome + frame(proto::kOk));
  EXPECT_THAT(talk(1, request(Op::set_acked, {{"/b"}, {"v"}, 0})), HasSubstr("its limit is 1"));
  EXPECT_TRUE(open_);
  EXPECT_EQ(talk(1, request(Op::wait_get, {{"/a"}, {}, 0})), frame(proto::kOk, {"v"}));
  const std::vector<std::pair<std::string, const char*>> over = {
      {request(Op::set, {{"/b"}, {"v"}, 0}), "its limit is 1"},
      {request(Op::queue_push, {{"/q"}, {"v"}, 0}), "its limit is 1"},
      {request(Op::append, {{"/a"}, {"vvvv"}, 0}), "at most 4 bytes"},
      {request(Op::multi_set, {{"/a", "/b"}, {"2", ""}, 0}), "its limit is 1"}};
  SessionId id = 2;
  for (const auto& [bytes, reason] : over) {
    EXPECT_EQ(talk(id, kGreeting + bytes), "");
    EXPECT_THAT(close_reason_of(id++), HasSubstr(reason));
  }
}

TEST_F(ServerSessionTest, RepliesAreLimited) {
  restart({.limits = {.max_message_bytes = 3000}});
  std::string keys;
  talk(1, kHello);
  for (const char* key : {"/a", "/b", "/c", "/d"}) {
    const std::string value(1000, 'x');
    talk(1, request(Op::set_acked, {{key}, {value}, 0}));
  }
  EXPECT_THAT(talk(1, request(Op::wait_get, {{"/a", "/b", "/c"}, {}, 0})), HasSubstr("the limit is 3000"));
  EXPECT_TRUE(open_);
  talk(1, request(Op::multi_get, {{"/a", "/b", "/c"}, {}, 0}));
  EXPECT_THAT(close_reason_of(1), HasSubstr("the limit is 3000"));
  for (int i = 0; i < 60; ++i) state_->keys.set("/key" + std::to_string(i), "");
  open_ = true;
  talk(2, kGreeting + request(Op::list_keys));
  EXPECT_THAT(close_reason_of(2), HasSubstr("LIST_KEYS of 64 keys"));
}

TEST_F(ServerSessionTest, AWaitThatWasGrantedIsRefusedIfItsValuesHaveGrownTooLarge) {
  restart({.limits = {.max_message_bytes = 1000}});
  EXPECT_EQ(talk(1, kHello + request(Op::wait_get, {{"/a", "/b"}, {}, -1})), kWelcome);
  const std::string value(600, 'x');
  talk(2, kHello + request(Op::set_acked, {{"/a"}, {value}, 0}) + request(Op::set_acked, {{"/b"}, {value}, 0}));
  EXPECT_THAT(take_output(1), HasSubstr("the limit is 1000"));
  EXPECT_EQ(talk(1, request(Op::ping, {{}, {}, 1})), std::string("\1\0\0\0", 4));
}

TEST_F(ServerSessionTest, WhatItHoldsIsCountedAndGivenBack) {
  talk(2, kHello);
  EXPECT_EQ(state_->held_bytes, 0u);
  const std::string large = request(Op::set_acked, {{"/k"}, {std::string(100000, 'x')}, 0});
  talk(1, kHello + large.substr(0, 60000));
  EXPECT_EQ(state_->held_bytes, 60000u);
  EXPECT_EQ(session(1).held_bytes(), 60000u);
  talk(1, large.substr(60000));
  EXPECT_EQ(state_->held_bytes, 0u);
  // A reply that is not read.
  EXPECT_TRUE(session(1).receive(request(Op::get, {{"/k"}, {}, 0})));
  EXPECT_EQ(state_->held_bytes, 100008u);
  EXPECT_TRUE(session(1).sent(50000));
  EXPECT_TRUE(session(1).sent(50008));
  EXPECT_EQ(state_->held_bytes, 0u);
  // A wait.
  talk(1, request(Op::wait, {{"/long", "/wait"}, {}, 0}));
  EXPECT_GT(state_->held_bytes, 0u);
  sessions_.erase(1);
  EXPECT_EQ(state_->held_bytes, 0u);
}

TEST_F(ServerSessionTest, AClientThatMakesItHoldTooMuchIsClosed) {
  restart({.max_client_bytes = 1000});
  talk(1, kHello);
  const std::string large = request(Op::set_acked, {{"/k"}, {std::string(5000, 'x')}, 0});
  talk(1, large.substr(0, 900));
  EXPECT_TRUE(open_);
  talk(1, large.substr(900, 200));
  EXPECT_THAT(close_reason_of(1), HasSubstr("holds 1100 bytes"));
  // One that is pushed to and doesn't read.
  open_ = true;
  talk(2, kHello);
  for (int i = 0; i < 20 && session(2).close_reason().empty(); ++i) {
    session(2).push({proto::kPushFailed, {std::string(100, 'x')}});
  }
  EXPECT_THAT(session(2).close_reason(), HasSubstr("the limit is 1000"));
}

TEST_F(ServerSessionTest, WhatIsPipelinedIsLimitedAsItIsServed) {
  restart({.max_client_bytes = std::size_t{8} << 20});
  talk(1, kHello + request(Op::set_acked, {{"/k"}, {std::string(1 << 20, 'x')}, 0}));
  std::string gets;
  std::string legacy_gets;
  for (int i = 0; i < 1000; ++i) {
    gets += request(Op::get, {{"/k"}, {}, 0});
    legacy_gets += legacy_request(Op::get, {{"/k"}, {}, 0});
  }
  // Neither a watch nor a member's request that is refused lets more than one reply over what is held back.
  is_urgent_ = false;
  for (const std::string& all : {legacy_request(Op::watch_key, {{"/k"}, {}, 0}) + legacy_gets,
                                 kHello + request(Op::heartbeat, {{}, {""}, 1}) + gets}) {
    EXPECT_TRUE(session(2).receive(all));
    EXPECT_LT(state_->held_bytes, std::size_t{3} << 20);
    sessions_.erase(2);
  }
  // A member's signs of life are served whatever it has not read, up to the limit of a client.
  is_urgent_ = true;
  talk(3, kHello + request(Op::register_member, {{"/s"}, {"0", "1", "p", ""}, 0}));
  EXPECT_TRUE(session(3).receive(request(Op::get, {{"/k"}, {}, 0})));
  const int before = extension_requests_;
  std::string beats;
  for (int i = 0; i < 100; ++i) beats += request(Op::heartbeat, {{}, {""}, 1});
  EXPECT_TRUE(session(3).receive(beats));
  EXPECT_EQ(extension_requests_, before + 100);
  for (int i = 0; i < 1000; ++i) beats += request(Op::heartbeat, {{}, {""}, 1});
  int rounds = 0;
  while (session(3).receive(beats)) ++rounds;
  EXPECT_GT(rounds, 0);
  EXPECT_THAT(session(3).close_reason(), HasSubstr("the limit is 8388608"));
  EXPECT_LT(state_->held_bytes, std::size_t{17} << 20) << "what is reserved is at most twice what is wanted";
  const std::size_t size = session(3).output().size();
  session(3).push({proto::kPushFailed, {"late"}});
  EXPECT_EQ(session(3).output().size(), size) << "nothing is added for who is closed";
  session(3).shed("over");
  EXPECT_EQ(state_->held_bytes, 0u);
}

TEST_F(ServerSessionTest, ALargeValueIsInMemoryOnceForAllWhoWaitForIt) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const std::string value(kBytes, 'x');
  const std::string next(kBytes, 'y');
  constexpr SessionId kWaiters = 50;
  for (SessionId id = 1; id <= kWaiters; ++id) talk(id, kHello + request(Op::wait_get, {{"/k"}, {}, -1}));
  talk(99, kHello + request(Op::set_acked, {{"/k"}, {value}, 0}));
  EXPECT_LT(state_->held_bytes, 2 * kBytes);
  for (SessionId id = 1; id <= kWaiters; ++id) EXPECT_GE(session(id).load(), kBytes / kWaiters);
  // What is written meanwhile changes no reply, and what is pushed comes behind it.
  talk(99, request(Op::set_acked, {{"/k"}, {next}, 0}));
  session(1).push({proto::kPushLeft, {"0", "1"}});
  EXPECT_EQ(take_output(1), frame(proto::kOk, {value}) + frame(proto::kPushLeft, {"0", "1"}));
  for (SessionId id = 2; id <= kWaiters; ++id) EXPECT_EQ(take_output(id), frame(proto::kOk, {value}));
  EXPECT_EQ(state_->held_bytes, 0u);
  EXPECT_EQ(talk(1, request(Op::wait_get, {{"/k"}, {}, -1})), frame(proto::kOk, {next}));
}

TEST_F(ServerSessionTest, AWaitThatCanNotGoOnIsRefusedNotClosed) {
  restart({.max_waited_keys = 1});
  EXPECT_EQ(talk(1, kHello + request(Op::wait_get, {{"/k"}, {}, -1})), kWelcome);
  talk(2, kGreeting + request(Op::set, {{"/k"}, {"v"}, 0}) + request(Op::delete_key, {{"/k"}, {}, 0}) +
              request(Op::wait, {{"/other"}, {}, 0}));
  const std::string answer = take_output(1);
  EXPECT_EQ(answer.substr(0, 1), std::string(1, proto::kRefused));
  EXPECT_THAT(answer, HasSubstr("the limit is 1"));
  EXPECT_TRUE(open_);
  EXPECT_EQ(talk(1, request(Op::ping, {{}, {}, 1})), std::string("\1\0\0\0", 4));
}

TEST_F(ServerSessionTest, RequestsAreHeldBehindUnreadReplies) {
  const std::string key(4000, 'k');
  talk(1, kHello + request(Op::set_acked, {{key}, {std::string(1 << 20, 'x')}, 0}));
  const std::string get = request(Op::get, {{key}, {}, 0});
  EXPECT_TRUE(session(1).receive(get));
  const std::size_t one = session(1).output().size();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(session(1).receive(get));
  EXPECT_EQ(session(1).output().size(), one);
  EXPECT_TRUE(session(1).wants_input());
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(session(1).receive(get));
  EXPECT_FALSE(session(1).wants_input());
  std::size_t total = 0;
  while (!session(1).output().empty()) {
    const std::size_t part = std::min<std::size_t>(session(1).output().size(), 300000);
    total += part;
    EXPECT_TRUE(session(1).sent(part));
    EXPECT_LE(session(1).output().size(), 2 * one);
  }
  EXPECT_EQ(total, 26 * one);
  EXPECT_TRUE(session(1).wants_input());
  EXPECT_EQ(state_->held_bytes, 0u);
}

}  // namespace
}  // namespace lockstep::store::server_session_test
