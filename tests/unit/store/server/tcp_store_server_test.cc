// SPDX-License-Identifier: Apache-2.0
// What the server does with sockets, descriptors and memory: whom it lets in, whom it closes, and what it survives.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
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
#include "tests/support/error_of.h"
#include "tests/support/scarce_memory.h"
#include "tests/support/wait_until.h"
#include "tests/unit/store/server/server_test.h"

namespace lockstep::store::tcp_store_server_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using lockstep::testing::ScarceMemory;
using lockstep::testing::thrown_by;
using lockstep::testing::wait_until;
using proto::Op;
using std::chrono::milliseconds;
using std::chrono::seconds;

const Secret kSecret = Secret::parse(std::string(64, '5'));

std::string set_of(std::size_t bytes) { return kGreeting + request(Op::set, {{"/k"}, {std::string(bytes, 'x')}, 0}); }

class TcpStoreServerTest : public ::testing::Test {
 protected:
  TcpStore& serve(const TcpStoreServerOptions& options) {
    server_ = std::make_unique<TcpStoreServer>(options);
    store_ = std::make_unique<TcpStore>(Endpoint{.address = server_->address(), .secret = options.secret}, soon());
    return *store_;
  }
  RawClient raw() { return RawClient(*server_); }
  RawClient watcher_of_k() {
    RawClient watcher = raw();
    watcher.send(legacy_request(Op::watch_key, {{"/k"}, {}, 0}));
    EXPECT_EQ(watcher.receive(1), "\3");
    return watcher;
  }
  void await_clients(std::size_t number) {
    while (server_->client_count() < number) std::this_thread::yield();
  }

  LogLines log_;
  std::unique_ptr<TcpStoreServer> server_;
  std::unique_ptr<TcpStore> store_;
};

TEST_F(TcpStoreServerTest, ListensWhereItWasToldOnAFreePort) {
  serve({});
  EXPECT_EQ(server_->address().host, "127.0.0.1");
  EXPECT_NE(TcpStoreServer().address().port, server_->address().port);
  const auto error = thrown_by<SystemError>([&] { const TcpStoreServer third({.listen = server_->address()}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->error_number(), EADDRINUSE);
  expect_text(error->what(), {server_->address().to_string()});
}

TEST_F(TcpStoreServerTest, HalfARequestDelaysNobody) {
  TcpStore& store = serve({});
  const std::string bytes = set_of(5);
  std::vector<RawClient> stuck;
  for (std::size_t split = 0; split < bytes.size(); ++split) {
    stuck.push_back(raw());
    stuck.back().send(bytes.substr(0, split));
  }
  EXPECT_EQ(store.add("n", 1), 1);
  for (std::size_t split = 0; split < bytes.size(); ++split) {
    store.erase("k");
    stuck[split].send(bytes.substr(split));
    EXPECT_EQ(store.get("k", soon()), "xxxxx");
  }
}

TEST_F(TcpStoreServerTest, AChainOfWaitersIsWoken) {
  // Each client waits for its predecessor's key and has its own SET queued behind the wait.
  TcpStore& store = serve({});
  std::vector<RawClient> chain;
  for (int i = 0; i < 20; ++i) {
    chain.push_back(raw());
    chain.back().send(kGreeting + request(Op::wait, {{"/" + std::to_string(i)}, {}, 0}) +
                      request(Op::set, {{"/" + std::to_string(i + 1)}, {"v"}, 0}));
  }
  store.set("0", "");
  EXPECT_EQ(store.get("20", soon()), "v");
}

TEST_F(TcpStoreServerTest, ASlowReaderIsHeldBackAndOthersAreServed) {
  TcpStore& store = serve({});
  const std::string value(1 << 20, 'x');
  store.set("big", value);
  RawClient slow = raw();
  // 256 MiB of replies are asked for and not read. The server stops reading this client's requests; so the sending
  // stops too, once the kernel's buffers are full, if there are enough requests.
  std::string requests = kGreeting;
  for (int i = 0; i < 256; ++i) requests += request(Op::get, {{"/big"}, {}, 0});
  slow.send(requests);
  EXPECT_EQ(store.add("n", 1), 1);
  EXPECT_THROW(net::send_all(slow.fd(), std::string(std::size_t{64} << 20, static_cast<char>(Op::num_keys)),
                             Deadline::after(milliseconds(200))),
               Timeout);
  EXPECT_EQ(store.add("n", 1), 2);
  // It gets all of it when it reads after all.
  for (int i = 0; i < 256; ++i) {
    const std::string reply = slow.receive(8 + value.size());
    ASSERT_TRUE(std::string_view(reply).substr(8) == value) << i;
  }
}

TEST_F(TcpStoreServerTest, AWrongSecretIsLoggedWithTheAddressAndDelaysNobodyAndNoSecretIsSaid) {
  TcpStore& good = serve({.secret = kSecret, .run_id = "run 7", .refusal_delay = milliseconds(30)});
  const Secret other = Secret::random();
  std::atomic<bool> done = false;
  std::thread bad([&] {
    for (const auto& [secret, run] : {std::pair(other, "run 7"), std::pair(kSecret, "run 8")}) {
      const Endpoint there{.address = server_->address(), .secret = secret, .run_id = run, .role = "rank 3"};
      const std::string message = error_of<StoreError>([&] { const TcpStore store(there, soon()); });
      EXPECT_EQ(message.find(other.hex().substr(0, 8)) & message.find("55555555"), message.npos);
    }
    done = true;
  });
  while (!done) good.add("n", 1);
  bad.join();
  expect_text(log_.wait_for("wrong secret"), {"127.0.0.1:", "rank 3"});
  expect_text(log_.wait_for("'run 8'"), {"closed 127.0.0.1:", "rank 3"});
  EXPECT_EQ(log_.count("55555555") + log_.count(other.hex().substr(0, 8)), 0u);
}

TEST_F(TcpStoreServerTest, WhoDoesNotFinishItsGreetingIsClosedInTime) {
  server_ =
      std::make_unique<TcpStoreServer>(TcpStoreServerOptions{.secret = kSecret, .greeting_timeout = milliseconds(30)});
  RawClient half = raw();
  half.send(kHello);
  EXPECT_EQ(half.receive_all().size(), 1 + 8 + 8 + 32u);
  EXPECT_EQ(raw().receive_all(), "");
  expect_text(log_.wait_for("has not finished its greeting in time"), {"closed 127.0.0.1:"});
}

TEST_F(TcpStoreServerTest, WaitsForNobodyAtItsEndWhoHasNotProvedHimselfAndNamesHim) {
  serve({.secret = kSecret, .greeting_timeout = std::chrono::hours(1)});
  RawClient silent = raw();
  RawClient half = raw();
  half.send(kHello);
  half.receive(1);
  await_clients(3);
  EXPECT_FALSE(server_->wait_until_idle(Deadline::after(seconds(1)))) << "a client is still there";
  EXPECT_TRUE(silent.is_closed());
  EXPECT_TRUE(half.is_closed());
  for (const RawClient* stranger : {&silent, &half}) {
    EXPECT_EQ(log_.count("closed " + net::local_address(stranger->fd()).to_string()), 1u);
  }
  EXPECT_EQ(store_->add("n", 1), 1);
  const RawClient later = raw();
  await_clients(2);
  store_.reset();
  EXPECT_TRUE(server_->wait_until_idle(soon()));
}

TEST_F(TcpStoreServerTest, StopsListeningAndServesWhoIsThere) {
  TcpStore& client = serve({});
  EXPECT_EQ(client.add("n", 1), 1);
  std::atomic<bool> gone = false;
  server_->stop_listening();
  std::thread leaves([&] {
    // Idle can't be before the last client has gone: it says so first.
    EXPECT_TRUE(server_->wait_until_idle(soon()));
    EXPECT_TRUE(gone);
  });
  EXPECT_EQ(client.add("n", 1), 2);
  gone = true;
  store_.reset();
  leaves.join();
  EXPECT_THROW(TcpStore(server_->address(), Deadline::after(milliseconds(20))), Timeout);
}

TEST_F(TcpStoreServerTest, ForgetsWhatOneStartHasLeft) {
  TcpStore& store = serve({});
  for (const char* key : {"start/0/a", "start/0/b", "start/1/a"}) store.set(key, "v");
  server_->erase_all("/start/0/");
  EXPECT_TRUE(wait_until([&] { return store.list_keys() == std::vector<std::string>{"start/1/a"}; }));
}

TEST_F(TcpStoreServerTest, OfAllThatClientsMakeItHoldTheLargestIsClosed) {
  TcpStore& store = serve({.max_held_bytes = 1000000});
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

TEST_F(TcpStoreServerTest, OfAllWhatOneWriteCausesIsCheckedOnTheWay) {
  TcpStore& store = serve({.max_held_bytes = std::size_t{32} << 20});
  const std::string value(std::size_t{4} << 20, 'x');
  std::vector<RawClient> watchers;
  for (int i = 0; i < 20; ++i) watchers.push_back(watcher_of_k());
  // 8 MiB for each watcher, of which the kernel takes a part, in one write.
  store.set("k", value);
  store.set("k", value);
  expect_text(log_.wait_for("for all its clients"), {"the limit is 33554432"});
  EXPECT_EQ(store.add("n", 1), 1);
}

TEST_F(TcpStoreServerTest, AWatcherThatDoesNotReadIsClosedAndDelaysNobody) {
  TcpStore& store = serve({.max_client_bytes = std::size_t{4} << 20});
  const RawClient watcher = watcher_of_k();
  const std::string value(1 << 20, 'x');
  // What the kernel's buffers don't take, the server holds, up to the limit.
  while (log_.count("doesn't read") == 0) store.set("k", value);
  EXPECT_EQ(store.add("n", 1), 1);
}

TEST_F(TcpStoreServerTest, OfClientsInTheirGreetingTheLongestIsClosed) {
  TcpStore& store = serve({.max_greeting_clients = 3});
  std::vector<RawClient> idle;
  for (int i = 0; i < 3; ++i) idle.push_back(raw());
  await_clients(4);
  // Who greets gets in however many don't.
  for (int i = 0; i < 5; ++i) TcpStore(server_->address(), soon()).add("n", 1);
  EXPECT_TRUE(idle[0].is_closed());
  expect_text(log_.wait_for("greeting longest"), {"the limit is 3"});
  EXPECT_EQ(store.add("n", 0), 5);
}

TEST_F(TcpStoreServerTest, BeyondTheLimitOfClientsWhoDoesNotGreetMakesRoom) {
  TcpStore& one = serve({.max_clients = 2});
  RawClient stranger = raw();
  await_clients(2);
  TcpStore two(server_->address(), soon());
  EXPECT_EQ(one.add("n", 1) + two.add("n", 1), 3);
  EXPECT_TRUE(stranger.is_closed());
  expect_text(log_.wait_for("greeting longest"), {"2 clients are connected, the limit is 2"});
  RawClient three = raw();
  EXPECT_TRUE(three.is_closed()) << "nobody is left to make room";
}

// This process has no descriptors left but three for a client: a socket, and two for what ends its waits.
class NoDescriptors {
 public:
  NoDescriptors() {
    const UniqueFd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_TRUE(net::set_open_files_limit({static_cast<std::uint64_t>(probe.get()) + 16, before_.hard}));
    while (UniqueFd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)}) hoard_.push_back(std::move(fd));
    hoard_.resize(hoard_.size() - 3);
  }
  ~NoDescriptors() { EXPECT_TRUE(net::set_open_files_limit(before_)); }
  void release() { hoard_.clear(); }

 private:
  const net::OpenFilesLimit before_ = net::open_files_limit();
  std::vector<UniqueFd> hoard_;
};

TEST_F(TcpStoreServerTest, WithoutDescriptorsWhoDoesNotGreetMakesRoom) {
  TcpStore& store = serve({});
  RawClient stranger = raw();
  await_clients(2);
  const NoDescriptors none;
  EXPECT_EQ(TcpStore(server_->address(), soon()).add("late", 1), 1);
  EXPECT_TRUE(stranger.is_closed());
  expect_text(log_.wait_for("greeting longest"), {"Too many open files"});
  EXPECT_EQ(store.add("n", 1), 1);
}

TEST_F(TcpStoreServerTest, RunningOutOfDescriptorsIsSaidAndSurvived) {
  TcpStore& store = serve({});
  NoDescriptors none;
  std::thread late([&] { EXPECT_EQ(TcpStore(server_->address(), soon()).add("late", 1), 1); });
  expect_text(log_.wait_for("ulimit -n"), {"clients are connected", "Too many open files"});
  EXPECT_EQ(store.add("n", 1), 1);
  none.release();
  late.join();
}

TEST_F(TcpStoreServerTest, AFloodOfBadClientsIsANumberInTheLog) {
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

TEST_F(TcpStoreServerTest, TheSecondConnectionOfALegacyClientMayStaySilent) {
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
  store_->set("k", "new");
  std::string expected;
  proto::write_push(expected, proto::PushFormat::watch_event, {{"/k"}, {"v", "w"}, proto::kKeyUpdated});
  proto::write_push(expected, proto::PushFormat::watch_event, {{"/k"}, {"w", ""}, proto::kKeyDeleted});
  proto::write_push(expected, proto::PushFormat::watch_event, {{"/k"}, {"", "new"}, proto::kKeyCreated});
  EXPECT_EQ(silent.receive(expected.size()), expected);
}

// By what the loop's epoll descriptor is called in /proc.
std::set<int> epoll_descriptors() {
  std::set<int> result;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone);
    if (target == "anon_inode:[eventpoll]") result.insert(std::stoi(entry.path().filename()));
  }
  return result;
}

TEST_F(TcpStoreServerTest, ALoopThatEndsIsSaidAndCanBeWaitedFor) {
  const std::set<int> before = epoll_descriptors();
  serve({});
  EXPECT_FALSE(net::wait_readable(server_->end_fd(), Deadline::after(milliseconds(0))));
  std::set<int> epolls = epoll_descriptors();
  for (const int other : before) epolls.erase(other);
  ASSERT_EQ(epolls.size(), 1u);
  const UniqueFd other(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::dup3(other.get(), *epolls.begin(), O_CLOEXEC), *epolls.begin());
  const RawClient late = raw();  // wakes it
  EXPECT_TRUE(net::wait_readable(server_->end_fd(), soon()));
  expect_text(log_.wait_for("closes the connections of all clients"), {"epoll_wait"});
  EXPECT_EQ(server_->client_count(), 0u);
  EXPECT_THROW(store_->add("n", 1), StoreError);
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
TEST_F(TcpStoreServerTest, OneClientsMemoryThatIsLackingIsItsOwnFault) {
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
  lockstep::testing::expect_service_after_each_shortage(ask, [&] {
    const bool is_served = store.get("kept", soon()) == "value";
    ask();
    return is_served;
  });
  EXPECT_EQ(log_.count("closes the connections of all clients"), 0u);
}

}  // namespace
}  // namespace lockstep::store::tcp_store_server_test
