// SPDX-License-Identifier: Apache-2.0
// What the server lets clients have, over sockets; and what else it must survive.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "proto/push.h"
#include "runtime/net/open_files.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/server/tcp_store_server.h"
#include "tests/support/error_of.h"
#include "tests/support/scarce_memory.h"
#include "tests/unit/store/server/server_test.h"

namespace lockstep::store::tcp_limits_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using lockstep::testing::ScarceMemory;
using proto::Op;
using std::chrono::milliseconds;

const Secret kSecret = Secret::parse(std::string(64, '5'));

std::set<int> epoll_descriptors() {
  std::set<int> result;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone);
    if (target == "anon_inode:[eventpoll]") result.insert(std::stoi(entry.path().filename()));
  }
  return result;
}

class TcpLimitsTest : public ::testing::Test {
 protected:
  TcpStore& serve(const TcpStoreServerOptions& options) {
    server_ = std::make_unique<TcpStoreServer>(options);
    store_ = std::make_unique<TcpStore>(server_->address(), soon());
    return *store_;
  }
  RawClient raw() { return RawClient(*server_); }

  LogLines log_;
  std::unique_ptr<TcpStoreServer> server_;
  std::unique_ptr<TcpStore> store_;
};

TEST_F(TcpLimitsTest, OfKeys) {
  TcpStore& store = serve({.max_keys = 2});
  store.set("a", "");
  RawClient torch = raw();
  torch.send(kGreeting + request(Op::queue_push, {{"q"}, {""}, 0}) + request(Op::queue_length, {{"q"}, {}, 0}));
  EXPECT_EQ(torch.receive(8), std::string("\1\0\0\0\0\0\0\0", 8));
  expect_text(error_of<StoreError>([&] { store.set("b", ""); }), {"set 'b'", "its limit is 2"});
  torch.send(request(Op::queue_pop, {{"q"}, {}, 0}));
  EXPECT_EQ(torch.receive(16).front(), 1);
  store.set("b", "");
}

TEST_F(TcpLimitsTest, OfStoredBytes) {
  TcpStore& store = serve({.max_stored_bytes = 1000});
  store.set("a", std::string(900, 'x'));
  expect_text(error_of<StoreError>([&] { store.set("b", std::string(200, 'x')); }), {"its limit is 1000"});
  EXPECT_EQ(store.num_keys(), 1);
}

TEST_F(TcpLimitsTest, OfWaitedKeys) {
  TcpStore& store = serve({.max_waited_keys = 3});
  const std::vector<std::string> four = {"a", "b", "c", "d"};
  expect_text(error_of<StoreError>([&] { store.multi_get(four, soon()); }), {"the limit is 3"});
  EXPECT_THROW(store.multi_get(std::span(four).first(3), Deadline::after(milliseconds(1))), Timeout);
  // PyTorch's WAIT has no answer for it.
  RawClient torch = raw();
  torch.send(kGreeting + request(Op::wait, {{"a", "b", "c", "d"}, {}, 0}));
  EXPECT_TRUE(torch.is_closed());
  expect_text(log_.wait_for("wait for 4 keys"), {"the limit is 3"});
}

TEST_F(TcpLimitsTest, OfWatchedKeys) {
  serve({.max_watched_keys = 1});
  RawClient watcher = raw();
  watcher.send(legacy_request(Op::watch_key, {{"/a"}, {}, 0}));
  EXPECT_EQ(watcher.receive(1), "\3");
  RawClient greedy = raw();
  greedy.send(legacy_request(Op::watch_key, {{"/a"}, {}, 0}));
  EXPECT_TRUE(greedy.is_closed());
  expect_text(log_.wait_for("WATCH_KEY"), {"the limit is 1"});
}

TEST_F(TcpLimitsTest, OfWhatOneClientMakesTheServerHold) {
  TcpStore& store = serve({.max_client_bytes = 100000});
  RawClient hog = raw();
  const std::string set = request(Op::set, {{"/k"}, {std::string(300000, 'x')}, 0});
  hog.send(kGreeting);
  EXPECT_THROW(
      {
        hog.send(set.substr(0, 200000));
        hog.receive(1);
      },
      Error);
  expect_text(log_.wait_for("holds"), {"the limit is 100000"});
  EXPECT_EQ(store.add("n", 1), 1);
}

TEST_F(TcpLimitsTest, OfWhatAllClientsMakeTheServerHold) {
  TcpStore& store = serve({.max_held_bytes = 1000000});
  const auto set_of = [](std::size_t bytes) {
    return kGreeting + request(Op::set, {{"/k"}, {std::string(bytes, 'x')}, 0});
  };
  const std::string set = set_of(400000);
  // The server may hold up to twice of what it has read: below a quarter of the limit, this one can't be the largest.
  constexpr std::size_t kFirst = 240000;
  RawClient small = raw();
  small.send(set.substr(0, kFirst));
  RawClient large = raw();
  large.send(set_of(900000).substr(0, 800000));
  EXPECT_TRUE(large.is_closed());
  expect_text(log_.wait_for("for all its clients"), {"the limit is 1000000"});
  // The other one still has its part.
  small.send(set.substr(kFirst));
  EXPECT_EQ(store.get("k", soon()).size(), 400000u);
}

TEST_F(TcpLimitsTest, OfClientsInTheirGreetingTheLongestIsClosed) {
  TcpStore& store = serve({.max_greeting_clients = 3});
  std::vector<RawClient> idle;
  for (int i = 0; i < 3; ++i) idle.push_back(raw());
  while (server_->client_count() < 4) std::this_thread::yield();
  // Who greets gets in however many don't.
  for (int i = 0; i < 5; ++i) TcpStore(server_->address(), soon()).add("n", 1);
  EXPECT_TRUE(idle[0].is_closed());
  expect_text(log_.wait_for("greeting longest"), {"the limit is 3"});
  EXPECT_EQ(store.add("n", 0), 5);
}

TEST_F(TcpLimitsTest, OfAllClientsWhoDoesNotGreetMakesRoom) {
  server_ = std::make_unique<TcpStoreServer>(TcpStoreServerOptions{.secret = kSecret, .max_clients = 3});
  std::vector<RawClient> strangers;
  for (int i = 0; i < 3; ++i) strangers.push_back(raw());
  while (server_->client_count() < 3) std::this_thread::yield();
  const Endpoint friendly{.address = server_->address(), .secret = kSecret};
  EXPECT_EQ(TcpStore(friendly, soon()).add("n", 1), 1);
  EXPECT_TRUE(strangers[0].is_closed());
  expect_text(log_.wait_for("greeting longest"), {"3 clients are connected, the limit is 3"});
}

TEST_F(TcpLimitsTest, WithoutDescriptorsWhoDoesNotGreetMakesRoom) {
  TcpStore& store = serve({});
  RawClient stranger = raw();
  while (server_->client_count() < 2) std::this_thread::yield();
  const net::OpenFilesLimit before = net::open_files_limit();
  std::vector<UniqueFd> hoard;
  const UniqueFd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(net::set_open_files_limit({static_cast<std::uint64_t>(probe.get()) + 16, before.hard}));
  for (;;) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd) break;
    hoard.push_back(std::move(fd));
  }
  hoard.resize(hoard.size() - 3);  // for the client's side: a socket, and two for what ends its waits
  EXPECT_EQ(TcpStore(server_->address(), soon()).add("late", 1), 1);
  EXPECT_TRUE(stranger.is_closed());
  expect_text(log_.wait_for("greeting longest"), {"Too many open files"});
  EXPECT_EQ(store.add("n", 1), 1);
  hoard.clear();
  ASSERT_TRUE(net::set_open_files_limit(before));
}

TEST_F(TcpLimitsTest, ManyWhoWaitForOneLargeValueAreAllServed) {
  // Together their replies are far over the limit.
  TcpStore& store = serve({.max_held_bytes = std::size_t{32} << 20});
  std::vector<RawClient> waiters;
  for (int i = 0; i < 40; ++i) {
    waiters.push_back(raw());
    waiters.back().send(kHello + request(Op::wait_get, {{"/k"}, {}, -1}));
    waiters.back().receive(kWelcome.size());
  }
  const std::string value(std::size_t{8} << 20, 'x');
  store.set("k", value);
  const std::string expected = frame(proto::kOk, {value});
  for (RawClient& waiter : waiters) EXPECT_TRUE(waiter.receive(expected.size()) == expected);
  EXPECT_EQ(log_.count("for all its clients"), 0u);
}

TEST_F(TcpLimitsTest, OfAllWhatOneWriteCausesIsCheckedOnTheWay) {
  TcpStore& store = serve({.max_held_bytes = std::size_t{32} << 20});
  const std::string value(std::size_t{4} << 20, 'x');
  std::vector<RawClient> watchers;
  for (int i = 0; i < 20; ++i) {
    watchers.push_back(raw());
    watchers.back().send(legacy_request(Op::watch_key, {{"/k"}, {}, 0}));
    EXPECT_EQ(watchers.back().receive(1), "\3");
  }
  // 8 MiB for each watcher, of which the kernel takes a part, in one write.
  store.set("k", value);
  store.set("k", value);
  expect_text(log_.wait_for("for all its clients"), {"the limit is 33554432"});
  EXPECT_EQ(store.add("n", 1), 1);
}

TEST_F(TcpLimitsTest, AFloodOfBadClientsIsANumberInTheLog) {
  TcpStore& store = serve({.complaint_window = milliseconds(700)});
  constexpr std::size_t kBad = 300;
  for (std::size_t i = 0; i < kBad; ++i) {
    RawClient bad = raw();
    bad.send("GET / HTTP/1.1\r\n\r\n");
    EXPECT_TRUE(bad.is_closed());
  }
  EXPECT_EQ(store.add("n", 1), 1);
  // Each is in the log once: by a line of its own, or in the number of a later one.
  std::size_t told = 0;
  for (const Deadline limit = soon(); told < kBad && !limit.expired(); std::this_thread::yield()) {
    told = log_.count("first byte is 0x47");
    for (const std::string& line : log_.lines("more warnings about clients were left out")) {
      told += static_cast<std::size_t>(std::stoul(line.substr(line.rfind(": ") + 2)));
    }
  }
  EXPECT_EQ(told, kBad);
  EXPECT_LT(log_.count(""), kBad);
}

TEST_F(TcpLimitsTest, RunningOutOfDescriptorsIsSaidAndSurvived) {
  TcpStore& store = serve({});
  const net::OpenFilesLimit before = net::open_files_limit();
  std::vector<UniqueFd> hoard;
  {
    const UniqueFd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_TRUE(net::set_open_files_limit({static_cast<std::uint64_t>(probe.get()) + 16, before.hard}));
    for (;;) {
      UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (!fd) break;
      hoard.push_back(std::move(fd));
    }
    // Three for the client's side, a socket and what ends its waits; none for the server's.
    hoard.resize(hoard.size() - 3);
    std::thread late([&] { EXPECT_EQ(TcpStore(server_->address(), soon()).add("late", 1), 1); });
    expect_text(log_.wait_for("ulimit -n"), {"clients are connected", "Too many open files"});
    EXPECT_EQ(store.add("n", 1), 1);
    hoard.clear();
    late.join();
  }
  ASSERT_TRUE(net::set_open_files_limit(before));
}

TEST_F(TcpLimitsTest, TheSecondConnectionOfALegacyClientMayStaySilent) {
  serve({.greeting_timeout = milliseconds(50)});
  // One that stands still before its greeting is closed, and comes again.
  std::optional<RawClient> main;
  const auto is_served = [&] {
    try {
      main.emplace(*server_);
      main->send(legacy_request(Op::set, {{"/k"}, {"v"}, 0}) + legacy_request(Op::num_keys));
      main->receive(8);
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  while (!is_served()) {
  }
  RawClient silent = raw();
  EXPECT_TRUE(silent.is_silent(milliseconds(200)));
  // Its later use: told of a key's changes, whoever makes them.
  silent.send(legacy_request(Op::watch_key, {{"/k"}, {}, 0}));
  EXPECT_EQ(silent.receive(1), "\3");
  store_->set("k", "w");
  store_->add("n", 1);
  store_->erase("k");
  std::string expected;
  proto::write_push(expected, proto::PushFormat::watch_event, {{"/k"}, {"v", "w"}, proto::kKeyUpdated});
  proto::write_push(expected, proto::PushFormat::watch_event, {{"/k"}, {"w", ""}, proto::kKeyDeleted});
  EXPECT_EQ(silent.receive(expected.size()), expected);
}

TEST_F(TcpLimitsTest, AWatcherThatDoesNotReadIsClosedAndDelaysNobody) {
  TcpStore& store = serve({.max_client_bytes = std::size_t{4} << 20});
  RawClient watcher = raw();
  watcher.send(legacy_request(Op::watch_key, {{"/k"}, {}, 0}));
  EXPECT_EQ(watcher.receive(1), "\3");
  const std::string value(1 << 20, 'x');
  // What the kernel's buffers don't take, the server holds, up to the limit.
  while (log_.count("doesn't read") == 0) store.set("k", value);
  EXPECT_EQ(store.add("n", 1), 1);
}

// The loop's epoll descriptor, by what it is called in /proc.
int epoll_descriptor_since(const std::set<int>& before) {
  for (const int fd : epoll_descriptors()) {
    if (!before.contains(fd)) return fd;
  }
  return -1;
}

TEST_F(TcpLimitsTest, ALoopThatCanNotGoOnIsSaidAndCanBeWaitedFor) {
  const std::set<int> before = epoll_descriptors();
  serve({});
  EXPECT_FALSE(net::wait_readable(server_->end_fd(), Deadline::after(milliseconds(0))));
  const int epoll = epoll_descriptor_since(before);
  ASSERT_GE(epoll, 0);
  const UniqueFd other(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::dup3(other.get(), epoll, O_CLOEXEC), epoll);
  const RawClient late = raw();  // wakes it
  EXPECT_TRUE(net::wait_readable(server_->end_fd(), soon()));
  expect_text(log_.wait_for("closes the connections of all clients"), {"epoll_wait"});
  EXPECT_EQ(server_->client_count(), 0u);
  EXPECT_THROW(store_->add("n", 1), StoreError);
}

// A server that closes the second connection in its greeting.
TEST(TcpStoreConnections, OneThatIsClosedInItsGreetingIsOpenedAgain) {
  const UniqueFd listener = net::tcp_listen({"127.0.0.1", 0});
  const net::HostPort address = net::local_address(listener.get());
  std::thread server([&] {
    std::vector<UniqueFd> connections;
    const std::string answer = frame(proto::kOk);
    for (const std::string& all : {kWelcome, std::string(), kWelcome + answer}) {
      net::wait_readable(listener.get(), soon());
      connections.push_back(net::tcp_try_accept(listener.get()));
      net::send_all(connections.back().get(), all, soon());
      // No more will come; what the client sends stays unread, without a reset that would overtake the answer.
      EXPECT_EQ(::shutdown(connections.back().get(), SHUT_WR), 0);
    }
    EXPECT_TRUE(net::wait_readable(listener.get(), soon()));  // the client has what it wants
  });
  TcpStore store(address, soon());
  EXPECT_THROW(store.set("k", "v"), StoreError) << "the first connection has ended";
  store.set("k", "v");
  const UniqueFd done = net::tcp_connect(address, soon());
  server.join();
}

TEST(OpenFiles, TheSoftLimitIsRaisedToTheHardOne) {
  const net::OpenFilesLimit before = net::open_files_limit();
  const net::OpenFilesLimit low{before.hard - 1, before.hard};
  ASSERT_TRUE(net::set_open_files_limit(low));
  EXPECT_EQ(net::raise_open_files_limit(), low);
  EXPECT_EQ(net::open_files_limit(), (net::OpenFilesLimit{before.hard, before.hard}));
  ASSERT_TRUE(net::set_open_files_limit(before));
}

// Whatever is allocated for one client may fail, once or as long as that client is there, and what says so may fail as
// well: the others are served on.
TEST_F(TcpLimitsTest, OfMemoryAreOneClientsAlone) {
  if (!ScarceMemory::kIsPossible) GTEST_SKIP() << ScarceMemory::kWhyNot;
  TcpStore& store = serve({});
  store.set("kept", "value");
  const auto ask = [&] {
    for (const std::string& bytes :
         {kHello + request(Op::set, {{"key"}, {std::string(100, 'x')}, 0}) + request(Op::get, {{"kept"}, {}, 0}),
          std::string("GET / HTTP/1.1\r\nHost: here\r\n\r\n")}) {
      try {
        RawClient client = raw();
        client.send(bytes);
        ::shutdown(client.fd(), SHUT_WR);
        client.receive_all();
      } catch (const Error&) {  // it is closed before that
      }
    }
  };
  for (const long failures : {1L, 2L, ScarceMemory::kAll}) {
    bool was_met = true;
    for (long spare = 0; was_met; ++spare) {
      {
        const ScarceMemory scarce(spare, failures);
        ask();
        was_met = scarce.was_met();
      }
      ASSERT_EQ(store.get("kept", soon()), "value") << "after allocation " << spare << ", of " << failures;
      ask();
    }
  }
  EXPECT_EQ(log_.count("closes the connections of all clients"), 0u);
}

}  // namespace
}  // namespace lockstep::store::tcp_limits_test
