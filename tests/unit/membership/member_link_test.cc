// SPDX-License-Identifier: Apache-2.0
// Links, and members that are none, against a real server: who is told what.
#include "runtime/membership/member_link.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "proto/request.h"
#include "runtime/base/mutex.h"
#include "runtime/membership/membership_server.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/store/client/tcp_connection.h"
#include "runtime/store/server/tcp_store_server.h"
#include "tests/support/accept_one.h"
#include "tests/support/cause_of.h"
#include "tests/support/child.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/support/wait_until.h"
#include "tests/unit/membership/member_events.h"
#include "tests/unit/store/server/server_test.h"

namespace lockstep::membership::member_link_test {
namespace {

using lockstep::testing::accept_one;
using lockstep::testing::error_of;
using lockstep::testing::expect_cause;
using lockstep::testing::expect_message;
using namespace std::chrono_literals;
using Kind = MemberEvent::Kind;

// A member that does what the test does, and nothing by itself.
class BareMember {
 public:
  BareMember(const store::Endpoint& endpoint, int rank, int world_size = 3)
      : connection_(store::TcpConnection::open(endpoint, patience())) {
    const MemberInfo info = member(rank, world_size);
    const std::string own = std::to_string(rank);
    const std::string world = std::to_string(world_size);
    const std::string process = encode(info.process);
    request(proto::Op::register_member, {{"scope"}, {own, world, process, ""}, 0});
  }
  void request(proto::Op op, const proto::Contents& contents) {
    std::string bytes;
    proto::write_request(bytes, {op, contents});
    connection_.send(bytes, patience());
    const auto& reply = connection_.receive(op, 1, patience());
    EXPECT_NE(reply.number, proto::kRefused) << reply.values.at(0);
  }

 private:
  store::TcpConnection connection_;
};

class MemberLinks : public ::testing::Test {
 protected:
  explicit MemberLinks(const MembershipOptions& options = {})
      : members_(std::make_shared<MembershipServer>(options)),
        server_(std::make_unique<store::TcpStoreServer>(store::TcpStoreServerOptions{.extension = members_})) {}
  store::Endpoint endpoint() const { return {.address = server_->address()}; }
  std::unique_ptr<MemberLink> link(int rank, Events& events, const LivenessOptions& options = {},
                                   std::int64_t sequence = 0) {
    return std::make_unique<MemberLink>(endpoint(), "scope", member(rank), options, events.calls(sequence), patience());
  }

  std::shared_ptr<MembershipServer> members_;
  std::unique_ptr<store::TcpStoreServer> server_;
};

class QuickMemberLinks : public MemberLinks {
 protected:
  // Who beats must not stand still for longer than this.
  static constexpr auto kSilence = 1s;
  QuickMemberLinks() : MemberLinks({.silence = kSilence, .look_interval = 20ms}) {}
  static LivenessOptions quick() { return {.heartbeat = 50ms, .silence = kSilence}; }
};

// A bug, or a shortage, of who is told: nothing of it is the store's fault.
TEST_F(MemberLinks, WhatACallbackThrowsEndsNoLink) {
  Events events;
  int told = 0;
  MemberCalls calls = events.calls();
  calls.on_event = [&](const MemberEvent& event) {
    if (++told == 1) throw std::bad_alloc();
    events.add(event);
  };
  const MemberLink own(endpoint(), "scope", member(0), {}, calls, patience());
  { const BareMember lost(endpoint(), 1); }
  { const BareMember lost(endpoint(), 2); }
  EXPECT_EQ(events.await(Kind::lost).number, 2);
  ASSERT_EQ(events.all().size(), 1u) << "a store that is lost, or another";
}

// A goodbye to a group is heard before the loss of who has said it.
TEST_F(MemberLinks, WordsComeInOneOrderWithAllElse) {
  std::array<Events, 2> heard;
  std::array<std::unique_ptr<MemberLink>, 2> links;
  for (const std::size_t rank : {0u, 1u}) {
    MemberCalls calls = heard[rank].calls();
    calls.on_event = [say = calls.on_word](const MemberEvent& event) { say("event", event.cause.text); };
    links[rank] = std::make_unique<MemberLink>(endpoint(), "scope", member(static_cast<int>(rank)), LivenessOptions{},
                                               calls, patience());
  }
  for (int k = 0; k < 50; ++k) {
    for (const auto& link : links) link->say("/groups/1", {0, 1}, std::to_string(k));
  }
  links[1]->say("", {}, "goodbye");
  links[1]->report({.kind = Cause::Kind::failed, .rank = 1, .text = "no memory"});
  const std::vector<std::string> words = heard[0].await_words(102);
  EXPECT_EQ(words, heard[1].await_words(102));
  EXPECT_LT(std::find(words.begin(), words.end(), ": goodbye"),
            std::find(words.begin(), words.end(), "event: no memory"));
}

// Its next heartbeat is an hour away.
TEST_F(MemberLinks, WhoHearsOfALossFirstTellsHowFarItIsItself) {
  Events events;
  std::atomic<std::int64_t> sequence = 40;
  MemberCalls calls = events.calls();
  calls.position = [&] { return MemberPosition{.sequence = sequence}; };
  const MemberLink own(endpoint(), "scope", member(0), {.detect_silence = false, .heartbeat = 1h}, calls, patience());
  const auto is_told = [&] { return members_->members().at(0).position.sequence == sequence; };
  EXPECT_TRUE(testing::wait_until(is_told));
  sequence = 41;
  { const BareMember lost(endpoint(), 1); }
  EXPECT_TRUE(testing::wait_until(is_told));
}

TEST_F(MemberLinks, AConnectionThatEndsIsALossAlsoForWhoComesLaterAndForTheServersOwner) {
  EXPECT_TRUE(members_->members().empty());
  Events events;
  Events late;
  const auto own = link(0, events, {.heartbeat = 50ms}, 41);
  { const BareMember lost(endpoint(), 1); }
  const MemberEvent event = events.await(Kind::lost);
  EXPECT_EQ(event.number, 1);
  const auto latecomer = link(2, late);
  for (const Cause& cause : {event.cause, late.await(Kind::lost).cause}) {
    expect_cause(cause, {.kind = Cause::Kind::lost, .rank = 1, .pid = ::getpid()});
  }
  std::vector<MemberView> members;
  const Deadline deadline = patience();
  do {  // the first heartbeat may still be under way
    members = members_->members();
    ASSERT_EQ(members.size(), 3u);
  } while (members.at(0).position.sequence != 41 && !deadline.expired());
  EXPECT_EQ(members.at(0).position.sequence, 41);
  EXPECT_EQ(members.at(0).state, MemberState::present);
  EXPECT_EQ(members.at(0).info.process, member(0).process);
  EXPECT_EQ(members.at(1).state, MemberState::lost);
}

TEST_F(MemberLinks, AGoodbyeOrADestructorsIsNone) {
  Events events;
  const auto own = link(1, events);
  Events ignored;
  const auto first = link(0, ignored);
  first->goodbye(41);
  EXPECT_EQ(members_->members().at(0).state, MemberState::left) << "when goodbye() has returned";
  EXPECT_EQ(events.await(Kind::left).cause.sequence, 41);
  EXPECT_EQ(events.await(Kind::left).cause.rank, 0);
  { const auto leaver = link(2, ignored, {}, 17); }
  EXPECT_EQ(members_->members().at(2).state, MemberState::left);
  EXPECT_EQ(members_->members().at(2).position.sequence, 17);
  EXPECT_EQ(events.all().size(), 1u);
}

// A store that serves one member and never answers its goodbye. What it was asked, in order, once the member has gone.
std::vector<proto::Op> asked_by_one_member(int listener) {
  const UniqueFd member = accept_one(listener, patience());
  std::vector<proto::Op> asked;
  proto::RequestReader reader({}, proto::Dialect::lockstep);
  std::string input;
  try {
    for (;;) {
      std::array<std::byte, 4096> bytes;
      const std::size_t count = net::recv_some(member.get(), bytes, patience());
      input.append(reinterpret_cast<const char*>(bytes.data()), count);
      while (reader.read(input) == proto::Status::ok) {
        asked.push_back(reader.request().op);
        input.erase(0, reader.size());
        const bool greets = asked.back() == proto::Op::hello || asked.back() == proto::Op::register_member;
        if (greets) net::send_all(member.get(), store::frame(proto::kOk), patience());
      }
    }
  } catch (const net::ConnectionClosed&) {
    return asked;
  }
}

TEST(SlowStore, HearsNothingFromAMemberBehindItsGoodbye) {
  const UniqueFd listener = net::tcp_listen({.host = "127.0.0.1", .port = 0});
  auto asked = std::async(std::launch::async, [&] { return asked_by_one_member(listener.get()); });
  Events events;
  {
    MemberLink link({.address = net::local_address(listener.get())}, "scope", member(1),
                    {.heartbeat = 1ms, .farewell = 300ms}, events.calls(), patience());
  }
  const std::vector<proto::Op> ops = asked.get();
  EXPECT_EQ(std::count(ops.begin(), ops.end(), proto::Op::goodbye), 1);
  EXPECT_EQ(ops.back(), proto::Op::goodbye) << "the store would refuse it, and the member would warn of that";
}

TEST_F(MemberLinks, WhoIsUnwoundReportsIt) {
  Events events;
  const auto own = link(0, events);
  try {
    Events ignored;
    const auto unwound = link(1, ignored, {}, 17);
    throw InvalidArgument("of the program");
  } catch (const InvalidArgument&) {
  }
  const MemberEvent event = events.await(Kind::failed);
  expect_cause(event.cause, {.kind = Cause::Kind::failed,
                             .rank = 1,
                             .reporter = 1,
                             .pid = ::getpid(),
                             .sequence = 17,
                             .text = member(1).describe() + " failed: an exception ended it"});
  for (const MemberEvent& heard : events.all()) EXPECT_EQ(heard.kind, Kind::failed) << heard.cause.text;
}

// What the store's host hears.
struct News {
  store::TcpStoreServer& serve() {
    const auto hear = [this](const MemberNews& news) {
      MutexLock lock(mutex);
      if (news.message) messages.push_back(news.scope + ": " + *news.message);
      if (news.cause) filed.push_back(*news.cause);
    };
    return server.emplace(
        store::TcpStoreServerOptions{.extension = std::make_shared<MembershipServer>(MembershipOptions{}, hear)});
  }
  Mutex mutex;
  std::vector<std::string> messages GUARDED_BY(mutex);
  std::vector<Cause> filed GUARDED_BY(mutex);
  std::optional<store::TcpStoreServer> server;
};

// Whoever reports may end its process in the next moment.
TEST(Membership, AReportIsOnFileWhenItReturns) {
  News news;
  MemberLink reporter({.address = news.serve().address()}, "scope", member(1), {}, {}, patience());
  Cause late{.kind = Cause::Kind::timeout, .rank = 2, .reporter = 1, .sequence = 41, .text = "rank 2 is late"};
  reporter.report(late);
  MutexLock lock(news.mutex);
  EXPECT_EQ(news.filed, std::vector<Cause>{late});
}

TEST(Membership, MessagesOfAMemberReachTheStoresHostAlone) {
  News news;
  const store::Endpoint store{.address = news.serve().address()};
  Events events;
  const MemberLink other(store, "scope", member(2), {}, events.calls(), patience());
  MemberLink sender(store, "scope", member(1), {}, {}, patience());
  std::vector<std::string> sent;
  for (const std::string& text : {std::string("first"), std::string("second, with \0 in it", 20)}) {
    sender.send(text);
    sent.push_back("scope: " + text);
    MutexLock lock(news.mutex);
    EXPECT_EQ(news.messages, sent) << "as soon as send() has returned";
  }
  sender.report({.kind = Cause::Kind::failed, .rank = 1, .text = "rank 1 failed"});
  events.await(Kind::failed);
  EXPECT_EQ(events.all().size(), 1u);
}

TEST_F(MemberLinks, ADuplicateIsRefused) {
  Events events;
  const auto own = link(1, events);
  expect_message("membership", "duplicate", error_of<StoreError>([&] { link(1, events); }));
  EXPECT_TRUE(events.all().empty());
}

// Its host lets who is connected finish, and takes nobody new: so nobody may wait for it to listen again.
TEST_F(MemberLinks, AStoreWhoseHostIsLeavingIsAskedOnlyOnce) {
  Events events;
  const auto own = link(0, events);
  server_->stop_listening();
  expect_message("membership", "nobody listens", error_of<StoreError>([&] {
                   MemberLink(endpoint(), "scope", member(1), {}, events.calls(), Deadline::never());
                 }));
  EXPECT_TRUE(events.all().empty());
}

TEST_F(MemberLinks, AStoreThatEndsIsLostAndItsHostIsNamed) {
  Events events;
  const auto own = link(0, events);
  const std::string address = server_->address().to_string();
  server_.reset();
  const MemberEvent event = events.await(Kind::store_lost);
  EXPECT_FALSE(own->is_answered());
  EXPECT_EQ(event.host, ProcessInfo::of_this_process());
  EXPECT_EQ(event.address, address);
  expect_cause(event.cause, {.kind = Cause::Kind::lost, .reporter = 0});
  own->goodbye(1);  // to nobody, and waits for nobody
  EXPECT_EQ(events.all().size(), 1u);
}

TEST_F(QuickMemberLinks, WhoSendsNoHeartbeatIsSilentAndWhoDoesOrWantsNoLivenessIsNot) {
  Events events;
  Events others;
  const auto own = link(0, events, quick());
  const auto unwatched = link(2, others, {.detect_silence = false, .heartbeat = 1h});
  const BareMember silent(endpoint(), 1);
  const MemberEvent event = events.await(Kind::silent);
  expect_cause(
      event.cause,
      {.kind = Cause::Kind::silent, .rank = 1, .pid = ::getpid(), .text = "its process is there but does not run"});
  EXPECT_EQ(others.await(Kind::silent).cause.rank, 1);
  for (const MemberEvent& heard : events.all()) EXPECT_EQ(heard.cause.rank, 1) << heard.cause.text;
}

// The server as a process of its own, that can be stopped.
class StoppableServer {
 public:
  store::Endpoint endpoint() const { return {.address = {"127.0.0.1", port_}}; }
  pid_t pid() const { return child_.pid(); }

 private:
  const testing::Child child_{[](const testing::Line& line) {
    const store::TcpStoreServer server({.extension = std::make_shared<MembershipServer>()});
    return line.tell(server.address().port) ? testing::Child::stay() : 1;
  }};
  const std::uint16_t port_ = child_.told<std::uint16_t>();
};

TEST(StoppedStore, IsSilentUntilItGoesOnAndThenAccusesNobody) {
  const StoppableServer server;
  Events events;
  MemberLink own(server.endpoint(), "scope", member(0), {.heartbeat = 50ms, .silence = 300ms}, events.calls(),
                 patience());
  ASSERT_EQ(kill(server.pid(), SIGSTOP), 0);
  const MemberEvent event = events.await(Kind::store_silent);
  ASSERT_TRUE(event.host.has_value());
  EXPECT_EQ(event.host->pid, server.pid());
  EXPECT_TRUE(event.host_answers);
  expect_cause(event.cause,
               {.kind = Cause::Kind::silent, .reporter = 0, .text = "its process is stopped (SIGSTOP or Ctrl-Z)"});
  ASSERT_EQ(kill(server.pid(), SIGCONT), 0);
  events.await(Kind::store_answers);
  ASSERT_EQ(kill(server.pid(), SIGKILL), 0);
  events.await(Kind::store_lost);
  for (const MemberEvent& heard : events.all()) EXPECT_EQ(heard.cause.rank, -1) << heard.cause.text;
}

TEST(StoppedStore, IsNotSilentForWhoWantsNoLiveness) {
  const StoppableServer server;
  Events events;
  MemberLink own(server.endpoint(), "scope", member(0),
                 {.detect_silence = false, .heartbeat = 50ms, .silence = 1ms, .farewell = 100ms}, events.calls(),
                 patience());
  Events watching;
  {
    MemberLink other(server.endpoint(), "scope", member(1), {.heartbeat = 50ms, .silence = 300ms, .farewell = 1h},
                     watching.calls(), patience());
    ASSERT_EQ(kill(server.pid(), SIGSTOP), 0);
    watching.await(Kind::store_silent);
    // Its goodbye is not waited for: nobody is there to answer.
  }
  EXPECT_TRUE(events.all().empty());
}

}  // namespace
}  // namespace lockstep::membership::member_link_test
