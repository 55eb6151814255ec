// SPDX-License-Identifier: Apache-2.0
// The server and client under faults: death, silence, garbage, half requests, slow readers, crowds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "proto/request.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/client/wire_keys.h"
#include "runtime/store/server/tcp_store_server.h"
#include "tests/support/accept_one.h"
#include "tests/support/error_of.h"
#include "tests/support/wait_until.h"
#include "tests/unit/store/server/server_test.h"

namespace lockstep::store::tcp_store_test {
namespace {

using lockstep::testing::accept_one;
using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using lockstep::testing::thrown_by;
using proto::Op;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

class TcpStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<TcpStore> client(const TcpStoreOptions& options = {}) {
    return std::make_unique<TcpStore>(server_->address(), soon(), options);
  }
  std::unique_ptr<TcpStoreServer> server_ = std::make_unique<TcpStoreServer>();
};

TEST_F(TcpStoreTest, ListensWhereItWasToldOnAFreePort) {
  EXPECT_EQ(server_->address().host, "127.0.0.1");
  EXPECT_GT(server_->address().port, 0);
  const TcpStoreServer second;
  EXPECT_NE(second.address().port, server_->address().port);
  const auto error = thrown_by<SystemError>([&] { const TcpStoreServer third({.listen = server_->address()}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->error_number(), EADDRINUSE);
  expect_text(error->what(), {server_->address().to_string()});
}

TEST_F(TcpStoreTest, RestLetsGoOfConnectionsThatNobodyHasUsedSinceTheLast) {
  const auto store = client();
  store->set("k", "v");
  store->rest();
  EXPECT_EQ(server_->client_count(), 1u) << "it was used just now";
  store->rest();
  EXPECT_TRUE(server_->wait_until_idle(soon()));
  EXPECT_EQ(store->get("k", soon()), "v") << "on a new one";
}

TEST_F(TcpStoreTest, TheServerForgetsWhatOneStartHasLeft) {
  const auto store = client();
  for (const char* key : {"start/0/a", "start/0/b", "start/1/a"}) store->set(key, "v");
  server_->erase_all(wire_key("test", "start/0/"));
  EXPECT_TRUE(
      lockstep::testing::wait_until([&] { return store->list_keys() == std::vector<std::string>{"start/1/a"}; }));
}

TEST_F(TcpStoreTest, ConnectTimesOutNamingTheAddressAndWhatHappened) {
  const net::HostPort address = server_->address();
  server_.reset();
  const std::string message = error_of<Timeout>([&] { TcpStore store(address, Deadline::after(milliseconds(50))); });
  expect_text(message, {address.to_string(), "Connection refused", "of 0.05 s"});
}

TEST_F(TcpStoreTest, ConnectWaitsForAServerThatComesLater) {
  const net::HostPort address = server_->address();
  server_.reset();
  std::thread late([&] {
    TcpStore store(address, soon());
    store.set("k", "v");
  });
  server_ = std::make_unique<TcpStoreServer>(TcpStoreServerOptions{.listen = address});
  late.join();
  EXPECT_EQ(client()->get("k", soon()), "v");
}

TEST_F(TcpStoreTest, DeathOfTheServerEndsEveryWaitAtOnceAndNamesItsAddress) {
  const std::string address = server_->address().to_string();
  const auto store = client();
  constexpr int kWaiters = 4;
  std::vector<std::thread> waiters;
  for (int i = 0; i < kWaiters; ++i) {
    waiters.emplace_back([&, i] {
      store->add("waiting", 1);
      // No deadline: only the error can end it.
      EXPECT_THAT(error_of<StoreError>([&] { store->get("never" + std::to_string(i), Deadline::never()); }),
                  HasSubstr(address));
    });
  }
  while (client()->add("waiting", 0) < kWaiters) {
  }
  server_.reset();
  for (std::thread& waiter : waiters) waiter.join();
  expect_text(error_of<StoreError>([&] { store->set("k", "v"); }), {address});
  expect_text(error_of<StoreError>([&] { store->add("k", 1); }), {address});
  expect_text(error_of<StoreError>([&] { store->get("k", soon()); }), {address});
}

TEST_F(TcpStoreTest, ASilentServerIsLostAfterTheRequestTimeout) {
  // Connections are taken by the kernel and greeted here, then nobody answers, as when the host process is stopped.
  const UniqueFd listener = net::tcp_listen({"127.0.0.1", 0});
  std::vector<UniqueFd> connections;
  std::thread greeter([&] {
    connections.push_back(accept_one(listener.get(), soon()));
    std::string hello = request(Op::hello, {{}, {"", "", std::string(proto::kNonceBytes, 'n')}, proto::kVersion});
    net::recv_exact(connections[0].get(), std::as_writable_bytes(std::span(hello)), soon());
    net::send_all(connections[0].get(), std::string(9, '\0'), soon());  // welcome
  });
  TcpStore store(net::local_address(listener.get()), soon(),
                 {.request_timeout = milliseconds(50), .cancel_timeout = milliseconds(20)});
  greeter.join();
  expect_text(error_of<StoreError>([&] { store.get("k", Deadline::after(milliseconds(10))); }), {"may be stopped"});
  expect_text(error_of<StoreError>([&] { store.set("k", "v"); }), {"of 0.05 s"});
}

TEST_F(TcpStoreTest, AnotherProgramsPortIsSaidToBeThat) {
  const UniqueFd listener = net::tcp_listen({"127.0.0.1", 0});
  std::atomic<bool> done{false};
  std::thread other([&] {  // Hangs up on everybody, as a web server does on bytes that it does not understand.
    while (!done) {
      if (net::wait_readable(listener.get(), Deadline::after(milliseconds(5)))) net::tcp_try_accept(listener.get());
    }
  });
  const net::HostPort address = net::local_address(listener.get());
  expect_text(error_of<Timeout>([&] { TcpStore store(address, Deadline::after(milliseconds(60))); }),
              {"another program"});
  done = true;
  other.join();
}

TEST_F(TcpStoreTest, AnAnswerThatNoStoreGivesIsSaidToBeAnotherPrograms) {
  const UniqueFd listener = net::tcp_listen({"127.0.0.1", 0});
  UniqueFd connection;  // open until the client has read the answer
  std::thread other([&] {
    connection = accept_one(listener.get(), soon());
    std::string hello = request(Op::hello, {{}, {"", "", std::string(proto::kNonceBytes, 'n')}, proto::kVersion});
    net::recv_exact(connection.get(), std::as_writable_bytes(std::span(hello)), soon());
    net::send_all(connection.get(), "HTTP/1.1 400 Bad Request\r\n\r\n", soon());
  });
  const net::HostPort address = net::local_address(listener.get());
  expect_text(error_of<StoreError>([&] { TcpStore store(address, soon()); }),
              {address.to_string(), "see whether another program uses this port"});
  other.join();
}

TEST_F(TcpStoreTest, OverlongKeysAndValuesAreRefusedBeforeTheyAreSent) {
  const auto store = client();
  const std::string longest_key(8191, 'k');
  store->set(longest_key, "v");
  EXPECT_EQ(store->get(longest_key, soon()), "v");
  EXPECT_THROW(store->set(longest_key + "k", "v"), InvalidArgument);
  expect_text(error_of<InvalidArgument>([&] { store->set("k", std::string((8 << 20) + 1, 'v')); }), {"8388609"});
  const std::vector<std::string> keys(131073, "k");
  EXPECT_THROW(store->check(keys), InvalidArgument);
  const std::vector<std::string> over_64_mb(9000, longest_key);
  EXPECT_THROW(store->check(over_64_mb), InvalidArgument);
  EXPECT_EQ(store->get(longest_key, soon()), "v");  // The connection is whole.
}

TEST_F(TcpStoreTest, RequestsSplitAtEveryByteAreServed) {
  RawClient raw(*server_);
  const std::string bytes = kGreeting + request(Op::set, {{"/k"}, {"v"}, 0}) + request(Op::add, {{"/n"}, {}, 7}) +
                            request(Op::get, {{"/k"}, {}, 0}) + request(Op::ping, {{}, {}, 5});
  for (const char byte : bytes) raw.send(std::string_view(&byte, 1));
  EXPECT_EQ(raw.receive(8), std::string("\7\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(raw.receive(9), std::string("\1\0\0\0\0\0\0\0v", 9));
  EXPECT_EQ(raw.receive(4), std::string("\5\0\0\0", 4));
}

TEST_F(TcpStoreTest, HalfARequestDelaysNobody) {
  // Of each dialect, its greeting included.
  const std::string set = request(Op::set, {{"/half"}, {"value"}, 0});
  const std::vector<std::string> wholes = {kGreeting + set, kHello + set,
                                           legacy_request(Op::set, {{"/half"}, {"value"}, 0})};
  std::vector<std::unique_ptr<RawClient>> stuck;
  std::vector<std::string> rests;
  for (const std::string& bytes : wholes) {
    for (std::size_t split = 0; split < bytes.size(); ++split) {
      stuck.push_back(std::make_unique<RawClient>(*server_));
      stuck.back()->send(bytes.substr(0, split));
      rests.push_back(bytes.substr(split));
    }
  }
  const auto store = client();
  store->set("k", "v");
  EXPECT_EQ(store->get("k", soon()), "v");
  EXPECT_EQ(store->num_keys(), 1);
  for (std::size_t i = 0; i < stuck.size(); ++i) {
    store->erase("half");
    stuck[i]->send(rests[i]);
    EXPECT_EQ(store->get("half", soon()), "value");
  }
}

TEST_F(TcpStoreTest, GarbageIsClosedAndOthersGoOn) {
  const std::string two_to_40 = std::string("\0\0\0\0\0\1\0\0", 8);
  const std::vector<std::string> garbage = {
      "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
      std::string("\0\1\2\3\4", 5) + "\5\6\7\10",   // VALIDATE with another magic: a SET of 1.13 with a huge key
      request(Op::ping),                            // no greeting
      kGreeting + "\x2a",                           // no such operation
      kGreeting + "\x01" + two_to_40,               // SET with a key of 2^40 bytes
      kGreeting + "\x03" + std::string(8, '\xff'),  // GET with a key of 2^64 - 1 bytes
      kGreeting + "\x06" + two_to_40,               // WAIT for 2^40 keys
      kGreeting + request(Op::set, {{"/k"}, {"v"}, 0}) + "\xff",
  };
  const auto store = client();
  for (const std::string& bytes : garbage) {
    RawClient raw(*server_);
    raw.send(bytes);
    EXPECT_TRUE(raw.is_closed());
    EXPECT_EQ(store->add("good", 1), &bytes - garbage.data() + 1);
  }
  EXPECT_EQ(store->get("k", soon()), "v");  // What came before the garbage was a request like any other.
}

TEST_F(TcpStoreTest, AClientThatSendsNoGreetingIsClosed) {
  const TcpStoreServer impatient({.greeting_timeout = milliseconds(20)});
  TcpStore good(impatient.address(), soon());
  RawClient mute(impatient);
  EXPECT_TRUE(mute.is_closed());
  EXPECT_EQ(good.add("n", 1), 1);
}

TEST_F(TcpStoreTest, CancelWaitKeepsTheStreamInStep) {
  RawClient raw(*server_);
  raw.send(kGreeting + request(Op::wait, {{"/late"}, {}, 0}) + request(Op::cancel_wait));
  EXPECT_EQ(raw.receive(1), "\1");
  client()->set("late", "v");  // wakes nobody
  raw.send(request(Op::ping, {{}, {}, 9}));
  EXPECT_EQ(raw.receive(4), std::string("\x9\0\0\0", 4));
  // The race: the key is there before the cancellation, and both are answered.
  raw.send(request(Op::wait, {{"/late"}, {}, 0}) + request(Op::cancel_wait));
  EXPECT_EQ(raw.receive(2), std::string("\0\1", 2));
}

TEST_F(TcpStoreTest, RequestsBehindAWaitAreServedAfterIt) {
  RawClient raw(*server_);
  raw.send(kGreeting + request(Op::wait, {{"/late"}, {}, 0}) + request(Op::get, {{"/late"}, {}, 0}));
  client()->set("late", "v");
  EXPECT_EQ(raw.receive(10), std::string("\0\1\0\0\0\0\0\0\0v", 10));
}

TEST_F(TcpStoreTest, ChainsOfWaitersAreAllWoken) {
  // Each client waits for its predecessor's key and has its own SET queued behind the wait.
  std::vector<std::unique_ptr<RawClient>> chain;
  for (int i = 0; i < 20; ++i) {
    const std::string before = "/" + std::to_string(i);
    const std::string own = "/" + std::to_string(i + 1);
    chain.push_back(std::make_unique<RawClient>(*server_));
    chain.back()->send(kGreeting + request(Op::wait, {{before}, {}, 0}) + request(Op::set, {{own}, {"v"}, 0}));
  }
  const auto store = client();
  store->set("0", "");
  EXPECT_EQ(store->get("20", soon()), "v");
}

TEST_F(TcpStoreTest, AWaiterIsWokenOnlyWhenAllItsKeysExistAtOnce) {
  const auto store = client();
  RawClient raw(*server_);
  raw.send(kGreeting + request(Op::wait, {{"/a", "/b"}, {}, 0}) + request(Op::multi_get, {{"/a", "/b"}, {}, 0}));
  store->set("a", "old");
  store->erase("a");
  store->set("b", "B");
  EXPECT_FALSE(net::wait_readable(raw.fd(), Deadline::after(milliseconds(50))));
  store->set("a", "A");
  EXPECT_EQ(raw.receive(19), std::string("\0\1\0\0\0\0\0\0\0A\1\0\0\0\0\0\0\0B", 19));
}

TEST_F(TcpStoreTest, ASlowReaderIsHeldBackAndOthersGoOn) {
  const auto store = client();
  const std::string value(1 << 20, 'x');
  store->set("big", value);
  RawClient slow(*server_);
  // 256 MiB of replies are asked for and not read. The server stops reading this client's requests; so the sending
  // stops too, once the kernel's buffers are full, if there are enough requests.
  std::string requests = kGreeting;
  for (int i = 0; i < 256; ++i) requests += request(Op::get, {{"/big"}, {}, 0});
  slow.send(requests);
  EXPECT_EQ(store->add("n", 1), 1);
  EXPECT_THROW(
      {
        const std::string pings(std::size_t{64} << 20, static_cast<char>(Op::num_keys));
        net::send_all(slow.fd(), pings, Deadline::after(milliseconds(200)));
      },
      Timeout);
  EXPECT_EQ(store->add("n", 1), 2);
  // It gets all of it when it reads after all.
  for (int i = 0; i < 256; ++i) {
    const std::string reply = slow.receive(8 + value.size());
    ASSERT_TRUE(std::string_view(reply).substr(8) == value) << i;
  }
}

TEST_F(TcpStoreTest, LimitsOfTheStoreAndOfAReplyCloseTheClientThatBreaksThem) {
  server_ = std::make_unique<TcpStoreServer>(
      TcpStoreServerOptions{.limits = {.max_message_bytes = 3000}, .max_stored_bytes = 5000});
  const auto store = client();
  const std::vector<std::string> keys = {"a", "b", "c", "d"};
  for (const std::string& key : keys) store->set(key, std::string(1000, 'x'));
  EXPECT_THROW(store->multi_get(keys, soon()), StoreError);
  EXPECT_THROW(store->set("e", std::string(1000, 'x')), StoreError);
  EXPECT_EQ(store->num_keys(), 4);
  EXPECT_TRUE(store->erase("a"));
  store->set("e", std::string(1000, 'x'));
}

TEST_F(TcpStoreTest, ClientsBeyondTheLimitAreClosed) {
  server_ = std::make_unique<TcpStoreServer>(TcpStoreServerOptions{.max_clients = 2});
  const auto one = client();
  const auto two = client();
  RawClient three(*server_);
  EXPECT_TRUE(three.is_closed());
  EXPECT_EQ(one->add("n", 1) + two->add("n", 1), 3);
}

TEST_F(TcpStoreTest, WaitUntilIdleReturnsWhenTheLastClientHasGone) {
  EXPECT_TRUE(server_->wait_until_idle(soon()));
  auto store = client();
  EXPECT_FALSE(server_->wait_until_idle(Deadline::after(milliseconds(10))));
  std::thread leaver([&] { store.reset(); });
  EXPECT_TRUE(server_->wait_until_idle(soon()));
  leaver.join();
}

TEST_F(TcpStoreTest, ADyingClientsWaitIsForgotten) {
  const auto store = client();
  {
    RawClient raw(*server_);
    raw.send(kGreeting + request(Op::wait, {{"/k", "/l"}, {}, 0}) + request(Op::ping));
  }
  while (server_->client_count() > 1) std::this_thread::yield();
  store->set("k", "");
  store->set("l", "");
  EXPECT_EQ(store->num_keys(), 2);
}

TEST_F(TcpStoreTest, ManyClientsWaitForAndReadEachOthersKeys) {
  constexpr int kClients = 100;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kClients; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto store = client();
      store->set("rank" + std::to_string(rank), std::to_string(rank));
      std::vector<std::string> keys;
      for (int i = 0; i < kClients; ++i) keys.push_back("rank" + std::to_string(i));
      const auto values = store->multi_get(keys, soon());
      for (int i = 0; i < kClients; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], std::to_string(i));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(TcpStoreServer, StopsListeningAndServesWhoIsThere) {
  TcpStoreServer server;
  auto client = std::make_unique<TcpStore>(server.address(), soon());
  EXPECT_EQ(client->add("n", 1), 1);
  std::atomic<bool> gone = false;
  server.stop_listening();
  std::thread leaves([&] {
    // Idle can't be before the last client has gone: it says so first.
    EXPECT_TRUE(server.wait_until_idle(soon()));
    EXPECT_TRUE(gone);
  });
  EXPECT_EQ(client->add("n", 1), 2);
  EXPECT_TRUE(client->check({}));
  gone = true;
  client.reset();
  leaves.join();
  EXPECT_THROW(TcpStore(server.address(), Deadline::after(milliseconds(20))), Timeout);
}

}  // namespace
}  // namespace lockstep::store::tcp_store_test
