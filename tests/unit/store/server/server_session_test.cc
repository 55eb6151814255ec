// SPDX-License-Identifier: Apache-2.0
// The server's side of one connection, without sockets: greeting, refusals, timers, and what it holds. The answers of
// each operation, byte for byte: golden_session_test.cc.
#include "runtime/store/server/server_session.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/push.h"
#include "proto/reply.h"
#include "tests/support/messages.h"
#include "tests/unit/store/server/server_test.h"
#include "tests/unit/store/server/session_bench.h"

namespace lockstep::store::server_session_test {
namespace {

using lockstep::testing::expect_message;
using proto::Dialect;
using proto::Op;
using std::chrono::milliseconds;

const Secret kSecret = Secret::parse(std::string(64, '5'));
const std::string kPong("\1\0\0\0", 4);

std::string set(const std::string& key, const std::string& value) { return request(Op::set, {{key}, {value}, 0}); }
std::string set_acked(const std::string& key, const std::string& value) {
  return request(Op::set_acked, {{key}, {value}, 0});
}
std::string wait_get(const std::vector<std::string_view>& keys, std::int64_t ms) {
  return request(Op::wait_get, {keys, {}, ms});
}
std::string get(const std::string& key) { return request(Op::get, {{key}, {}, 0}); }
std::string ping() { return request(Op::ping, {{}, {}, 1}); }

// The text of a frame that refuses.
std::string refusal_in(const std::string& bytes) {
  proto::ReplyReader reader(Op::set_acked);
  EXPECT_EQ(reader.read(bytes), proto::Status::ok);
  EXPECT_EQ(reader.contents().number, proto::kRefused);
  EXPECT_EQ(reader.size(), bytes.size());
  return std::string(reader.contents().values.at(0));
}

class ServerSessionTest : public ::testing::Test {
 protected:
  class Bench : public SessionBench {
   public:
    using SessionBench::SessionBench;
    bool is_urgent = false;
    int extension_requests = 0;

   private:
    ServerExtension::Answer serve_extension(SessionId, const proto::Request&) override {
      ++extension_requests;
      return {.frame = {proto::kOk, {}}, .is_urgent = is_urgent};
    }
  };

  void serve(const TcpStoreServerOptions& rules) { bench_ = std::make_unique<Bench>(rules); }
  ServerSession& session(SessionId id) {
    if (!bench_->connected(id)) bench_->connect(id);
    return *bench_->session(id);
  }
  // All that a client has been sent.
  std::string heard(SessionId id) {
    std::string all;
    for (std::string part = bench_->take(id); !part.empty(); part = bench_->take(id)) all += part;
    return all;
  }
  std::string talk(SessionId id, std::string_view bytes) {
    session(id);
    bench_->send(id, bytes);
    return heard(id);
  }
  std::size_t held() const { return bench_->state.held_bytes; }

  std::unique_ptr<Bench> bench_ = std::make_unique<Bench>();
};

TEST_F(ServerSessionTest, ItIsGreetedWhenItsFirstRequestIsWhole) {
  struct Case {
    std::string first;
    Dialect dialect;
    const char* role;
  };
  const Case cases[] = {{kGreeting, Dialect::current, ""},
                        {legacy_request(Op::set, {{"/k"}, {"v"}, 0}), Dialect::legacy, ""},
                        {kHello, Dialect::lockstep, "raw"}};
  SessionId id = 0;
  for (const Case& test : cases) {
    EXPECT_TRUE(session(++id).is_silent());
    for (const char& byte : test.first) {
      EXPECT_FALSE(session(id).is_greeted());
      talk(id, {&byte, 1});
      EXPECT_FALSE(session(id).is_silent());
    }
    EXPECT_TRUE(session(id).is_greeted());
    EXPECT_EQ(session(id).dialect(), test.dialect);
    EXPECT_EQ(session(id).role(), test.role);
  }
}

// What client 1 sends, once client 2 has sent something, closes it; the reason is for the log.
TEST_F(ServerSessionTest, WhatClosesAClient) {
  struct Case {
    const char* name;
    std::string bytes;
    TcpStoreServerOptions rules = {};
    std::string before = {};
  };
  const std::string watch = legacy_request(Op::watch_key, {{"/k"}, {}, 0});
  const auto barrier = [](std::int64_t ranks) { return kGreeting + request(Op::barrier, {{"/b"}, {}, ranks}); };
  const TcpStoreServerOptions secret{.secret = kSecret};
  const TcpStoreServerOptions one_key{.limits = {.max_value_bytes = 4}, .max_keys = 1};
  const TcpStoreServerOptions short_replies{.limits = {.max_message_bytes = 200}};
  const Case cases[] = {
      {"a browser", "GET / HTTP/1.1\r\n"},
      {"a second VALIDATE with another magic", kGreeting + request(Op::validate, {{}, {}, 1})},
      {"an unknown operation", kGreeting + "\x13"},
      {"PyTorch at a store with a secret", kGreeting, secret},
      {"PyTorch 1.13 at a store with a secret", legacy_request(Op::set, {{"/k"}, {"v"}, 0}), secret},
      {"PyTorch 1.13 at a store with a secret, by its first byte", "\3", secret},
      {"a request before the proof", kHello + set("/k", "v"), secret},
      {"a member's request before the proof", kHello + request(Op::report, {{}, {"x"}, 0}), secret},
      {"HELLO twice", kHello + kHello, secret},
      {"PROVE before HELLO", request(Op::prove, {{}, {std::string(32, 'n')}, 0}), secret},
      {"a HELLO that is too long",
       request(Op::hello, {{}, {std::string(2000, 'r'), "", std::string(32, 'n')}, proto::kVersion}), secret},
      {"a request of 1.13 during a WAIT",
       legacy_request(Op::wait, {{"/k"}, {}, 0}) + legacy_request(Op::add, {{"/n"}, {}, 42})},
      {"a barrier of another world", barrier(3), {}, barrier(2)},
      {"a barrier of no ranks", barrier(0)},
      {"SET over the limit of keys", kGreeting + set("/b", "v"), one_key, kGreeting + set("/a", "v")},
      {"MULTI_SET over the limit of keys", kGreeting + request(Op::multi_set, {{"/a", "/b"}, {"2", ""}, 0}), one_key},
      {"an item over the limit of keys", kGreeting + request(Op::queue_push, {{"/q"}, {"v"}, 0}), one_key,
       kGreeting + set("/a", "v")},
      {"APPEND over the limit of a value", kGreeting + request(Op::append, {{"/a"}, {"vvvv"}, 0}), one_key,
       kGreeting + set("/a", "v")},
      {"SET over the limit of bytes", kGreeting + set("/b", "12345"), {.max_stored_bytes = 6}},
      {"WAIT over the limit of waited keys",
       kGreeting + request(Op::wait, {{"/b"}, {}, 0}),
       {.max_waited_keys = 1},
       kGreeting + request(Op::wait, {{"/a"}, {}, 0})},
      {"WATCH_KEY over the limit of watched keys", watch, {.max_watched_keys = 1}, watch},
      {"MULTI_GET of a reply over the limit",
       kGreeting + set("/a", std::string(100, 'x')) + request(Op::multi_get, {{"/a", "/a"}, {}, 0}), short_replies},
      {"LIST_KEYS of a reply over the limit",
       kGreeting + set("/a", "") + set("/b", "") + set("/c", "") + set("/d", "") + request(Op::list_keys),
       short_replies},
      {"more held than a client may",
       kHello + set("/k", std::string(5000, 'x')).substr(0, 1001),
       {.max_client_bytes = 1000}},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    serve(test.rules);
    if (!test.before.empty()) talk(2, test.before);
    const std::size_t keys = bench_->state.keys.size();
    const std::string answer = talk(1, test.bytes);
    ASSERT_TRUE(bench_->closed(1));
    expect_message("store", test.name, bench_->close_reason(1));
    if (!test.rules.secret) continue;
    EXPECT_EQ(answer.size(), test.bytes.starts_with(kHello) ? 1 + 8 + 8 + proto::kNonceBytes : 0) << "the challenge";
    EXPECT_EQ(bench_->state.keys.size(), keys);
    EXPECT_EQ(bench_->extension_requests, 0);
  }
  serve({});
  EXPECT_FALSE(session(1).receive("G")) << "the server closes a connection by it";
}

// Lockstep's own operations say what is wrong instead, and the client is served on.
TEST_F(ServerSessionTest, WhatIsRefusedToAClient) {
  struct Case {
    const char* name;
    TcpStoreServerOptions rules;
    std::string before;  // of client 2
    std::string bytes;
    std::string after = {};  // of client 2
  };
  const std::string large(600, 'x');
  const Case cases[] = {
      {"SET_ACKED over the limit of keys", {.max_keys = 1}, set_acked("/a", "v"), set_acked("/b", "v")},
      {"WAIT_GET over the limit of waited keys", {.max_waited_keys = 1}, "", wait_get({"/a", "/b"}, -1)},
      {"WAIT_GET of a reply over the limit",
       {.limits = {.max_message_bytes = 1000}},
       set_acked("/a", large) + set_acked("/b", large),
       wait_get({"/a", "/b"}, 0)},
      {"WAIT_GET of values that have grown",
       {.limits = {.max_message_bytes = 1000}},
       "",
       wait_get({"/a", "/b"}, -1),
       set_acked("/a", large) + set_acked("/b", large)},
      {"WAIT_GET that can't be resumed",
       {.max_waited_keys = 1},
       "",
       wait_get({"/k"}, -1),
       set("/k", "v") + request(Op::delete_key, {{"/k"}, {}, 0}) + request(Op::wait, {{"/other"}, {}, 0})},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    serve(test.rules);
    talk(2, kHello + test.before);
    EXPECT_EQ(talk(1, kHello), kWelcome);
    std::string answer = talk(1, test.bytes);
    if (!test.after.empty()) {
      EXPECT_EQ(answer, "");
      talk(2, test.after);
      answer = heard(1);
    }
    expect_message("store", test.name, refusal_in(answer));
    EXPECT_EQ(talk(1, ping()), kPong);
  }
}

TEST_F(ServerSessionTest, ASecretIsProvedInAnyPieces) {
  serve({.secret = kSecret, .run_id = "run"});
  ClientGreeting client(&kSecret, "run", "rank 1");
  const auto in_pieces = [this](const std::string& bytes) {
    std::string answer;
    for (const char& byte : bytes) answer += talk(1, {&byte, 1});
    return answer;
  };
  const std::string challenge = in_pieces(client.hello());
  ASSERT_EQ(challenge.size(), 1 + 8 + 8 + proto::kNonceBytes);
  EXPECT_FALSE(session(1).is_greeted());
  const std::string answer = in_pieces(client.prove({{}, {std::string_view(challenge).substr(1 + 8 + 8)}, proto::kOk}));
  EXPECT_TRUE(session(1).is_greeted());
  EXPECT_EQ(session(1).role(), "rank 1");
  EXPECT_EQ(session(1).run_id(), "run");
  proto::ReplyReader reader(Op::prove);
  ASSERT_EQ(reader.read(answer), proto::Status::ok);
  client.check(reader.contents());
  EXPECT_EQ(talk(1, ping()), kPong);
}

TEST_F(ServerSessionTest, AWrongSecretIsAnsweredAfterADelayAndNothingElseIsTaken) {
  serve({.secret = kSecret, .refusal_delay = milliseconds(700)});
  talk(1, kHello);
  EXPECT_EQ(talk(1, request(Op::prove, {{}, {std::string(32, '?')}, 0}) + request(Op::num_keys)), "");
  EXPECT_FALSE(bench_->closed(1));
  EXPECT_EQ(bench_->timer(1), milliseconds(700));
  EXPECT_EQ(bench_->complaint, "wrong secret from a client that calls itself 'raw'");
  EXPECT_FALSE(session(1).wants_input());
  EXPECT_EQ(talk(1, request(Op::num_keys)), "");
  bench_->expire(1);
  EXPECT_EQ(heard(1), frame(proto::kRefused, {"wrong secret"}));
  EXPECT_TRUE(bench_->closed(1));
  EXPECT_EQ(bench_->close_reason(1), "") << "the log has its line already";
}

TEST_F(ServerSessionTest, AWaitsTimerRunsUntilItsAnswer) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const auto none = std::optional<std::chrono::nanoseconds>();
  talk(1, kHello);
  talk(2, kHello);
  for (const auto& [ms, delay] :
       {std::pair(std::int64_t{5000}, std::optional<std::chrono::nanoseconds>(milliseconds(5000))),
        std::pair(std::int64_t{-1}, none),
        std::pair(kMost, std::optional<std::chrono::nanoseconds>(std::chrono::hours(876000)))}) {
    EXPECT_EQ(talk(1, wait_get({"/a", "/b"}, ms)), "");
    EXPECT_EQ(bench_->timer(1), delay);
    EXPECT_EQ(talk(1, request(Op::cancel_wait)), "\1");
    EXPECT_EQ(bench_->timer(1), none);
  }
  EXPECT_EQ(talk(1, wait_get({"/a", "/b"}, 5000)), "");
  talk(2, set_acked("/a", "A") + set_acked("/b", "B"));
  EXPECT_EQ(heard(1), frame(proto::kOk, {"A", "B"}));
  EXPECT_EQ(bench_->timer(1), none);
  EXPECT_EQ(talk(1, wait_get({"/b", "/a", "/b"}, 0)), frame(proto::kOk, {"B", "A", "B"}));
  EXPECT_EQ(talk(1, wait_get({"/b", "/c"}, 0)), frame(proto::kMissing, {"/c"})) << "no time at all";
  talk(2, set_acked("/c", "C"));
  EXPECT_EQ(heard(1), "") << "what comes later is not for that wait";
}

TEST_F(ServerSessionTest, AWaitContinuesIfAKeyGoesBeforeItIsRead) {
  EXPECT_EQ(talk(1, kHello + wait_get({"/k"}, -1)), kWelcome);
  talk(2, kGreeting + set("/k", "1") + request(Op::delete_key, {{"/k"}, {}, 0}));
  EXPECT_EQ(heard(1), "");
  talk(2, set("/k", "2"));
  EXPECT_EQ(heard(1), frame(proto::kOk, {"2"}));
}

TEST_F(ServerSessionTest, AWokenWaiterThatDoesNotPopLeavesTheItemToTheNext) {
  const std::string wait = kGreeting + request(Op::wait, {{"/q"}, {}, 0});
  const std::string woken(1, '\0');
  for (const SessionId id : {1, 2, 3}) EXPECT_EQ(talk(id, wait), "");
  talk(4, kGreeting + request(Op::queue_push, {{"/q"}, {"item"}, 0}));
  EXPECT_EQ(heard(1), woken);
  EXPECT_EQ(heard(2), "");
  bench_->disconnect(1);
  EXPECT_EQ(heard(2), woken);
  EXPECT_EQ(heard(3), "");
  talk(2, request(Op::num_keys));
  EXPECT_EQ(heard(3), woken);
}

TEST_F(ServerSessionTest, NothingIsLeftOfAClientThatGoes) {
  talk(1, legacy_request(Op::watch_key, {{"/k"}, {}, 0}));
  talk(2, kGreeting + request(Op::barrier, {{"/b"}, {}, 2}));
  EXPECT_EQ(bench_->state.legacy.watchers("/k"), std::vector<std::uint64_t>{1});
  bench_->disconnect(1);
  bench_->disconnect(2);
  EXPECT_TRUE(bench_->state.legacy.watchers("/k").empty());
  EXPECT_EQ(talk(3, kGreeting + request(Op::barrier, {{"/b"}, {}, 2})), "");
}

TEST_F(ServerSessionTest, WhatItHoldsIsCountedAndGivenBack) {
  talk(2, kHello);
  EXPECT_EQ(held(), 0u);
  const std::string large = set_acked("/k", std::string(100000, 'x'));
  talk(1, kHello + large.substr(0, 60000));
  EXPECT_EQ(held(), 60000u);
  EXPECT_EQ(session(1).held_bytes(), 60000u);
  talk(1, large.substr(60000));
  EXPECT_EQ(held(), 0u);
  // A reply that is not read.
  EXPECT_TRUE(session(1).receive(get("/k")));
  EXPECT_EQ(held(), 100008u);
  EXPECT_TRUE(session(1).sent(50000));
  EXPECT_TRUE(session(1).sent(50008));
  EXPECT_EQ(held(), 0u);
  // A wait.
  talk(1, request(Op::wait, {{"/long", "/wait"}, {}, 0}));
  EXPECT_GT(held(), 0u);
  bench_->disconnect(1);
  EXPECT_EQ(held(), 0u);
}

TEST_F(ServerSessionTest, AClientMayMakeItHoldSoMuchAndNotMore) {
  serve({.max_client_bytes = 1000});
  talk(1, kHello);
  talk(1, set_acked("/k", std::string(5000, 'x')).substr(0, 1000));
  EXPECT_FALSE(bench_->closed(1)) << "one byte more closes it, see above";
  // One that is pushed to and doesn't read.
  talk(2, kHello);
  bench_->reading = false;
  for (int i = 0; i < 20 && !bench_->closed(2); ++i) bench_->push(2, {proto::kPushFailed, {std::string(100, 'x')}});
  EXPECT_TRUE(bench_->closed(2));
}

TEST_F(ServerSessionTest, WhatIsPipelinedIsLimitedAsItIsServed) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  serve({.max_client_bytes = 8 * kMiB});
  talk(1, kHello + set_acked("/k", std::string(kMiB, 'x')));
  std::string gets;
  std::string legacy_gets;
  for (int i = 0; i < 1000; ++i) {
    gets += get("/k");
    legacy_gets += legacy_request(Op::get, {{"/k"}, {}, 0});
  }
  // Neither a watch nor a member's request that is refused lets more than one reply over what is held back.
  for (const std::string& all : {legacy_request(Op::watch_key, {{"/k"}, {}, 0}) + legacy_gets,
                                 kHello + request(Op::heartbeat, {{}, {""}, 1}) + gets}) {
    EXPECT_TRUE(session(2).receive(all));
    EXPECT_LT(held(), 3 * kMiB);
    bench_->disconnect(2);
  }
  // A member's signs of life are served whatever it has not read, up to the limit of a client.
  bench_->is_urgent = true;
  talk(3, kHello + request(Op::register_member, {{"/s"}, {"0", "1", "p", ""}, 0}));
  EXPECT_TRUE(session(3).receive(get("/k")));
  const int before = bench_->extension_requests;
  std::string beats;
  for (int i = 0; i < 100; ++i) beats += request(Op::heartbeat, {{}, {""}, 1});
  EXPECT_TRUE(session(3).receive(beats));
  EXPECT_EQ(bench_->extension_requests, before + 100);
  for (int i = 0; i < 1000; ++i) beats += request(Op::heartbeat, {{}, {""}, 1});
  int rounds = 0;
  while (session(3).receive(beats)) ++rounds;
  EXPECT_GT(rounds, 0);
  EXPECT_LT(held(), 17 * kMiB) << "what is reserved is at most twice what is wanted";
  const std::size_t size = session(3).output().size();
  session(3).push({proto::kPushFailed, {"late"}});
  EXPECT_EQ(session(3).output().size(), size) << "nothing is added for who is closed";
  session(3).shed("over");
  EXPECT_EQ(held(), 0u);
}

TEST_F(ServerSessionTest, ALargeValueIsInMemoryOnceForAllWhoWaitForIt) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  constexpr SessionId kWaiters = 50;
  const std::string value(kBytes, 'x');
  const std::string next(kBytes, 'y');
  for (SessionId id = 1; id <= kWaiters; ++id) talk(id, kHello + wait_get({"/k"}, -1));
  bench_->reading = false;
  talk(99, kHello + set_acked("/k", value));
  EXPECT_LT(held(), 2 * kBytes);
  for (SessionId id = 1; id <= kWaiters; ++id) EXPECT_GE(session(id).load(), kBytes / kWaiters);
  // What is written meanwhile changes no reply, and what is pushed comes behind it.
  talk(99, set_acked("/k", next));
  session(1).push({proto::kPushLeft, {"0", "1"}});
  EXPECT_EQ(heard(1), frame(proto::kOk, {value}) + frame(proto::kPushLeft, {"0", "1"}));
  for (SessionId id = 2; id <= kWaiters; ++id) EXPECT_EQ(heard(id), frame(proto::kOk, {value}));
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(talk(1, wait_get({"/k"}, -1)), frame(proto::kOk, {next}));
}

TEST_F(ServerSessionTest, RequestsAreHeldBehindUnreadReplies) {
  const std::string key(4000, 'k');
  talk(1, kHello + set_acked(key, std::string(1 << 20, 'x')));
  EXPECT_TRUE(session(1).receive(get(key)));
  const std::size_t one = session(1).output().size();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(session(1).receive(get(key)));
  EXPECT_EQ(session(1).output().size(), one);
  EXPECT_TRUE(session(1).wants_input());
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(session(1).receive(get(key)));
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
  EXPECT_EQ(held(), 0u);
}

}  // namespace
}  // namespace lockstep::store::server_session_test
