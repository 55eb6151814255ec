// SPDX-License-Identifier: Apache-2.0
// The client at servers that die, are silent, are something else, or refuse.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "proto/request.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/server/tcp_store_server.h"
#include "tests/support/accept_one.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/unit/store/server/server_test.h"

namespace lockstep::store::tcp_store_test {
namespace {

using lockstep::testing::accept_one;
using lockstep::testing::error_of;
using lockstep::testing::expect_message;
using lockstep::testing::expect_text;
using proto::Op;
using std::chrono::milliseconds;

// Takes a client's greeting and answers it with this.
UniqueFd answer_greeting(int listener, const std::string& answer) {
  UniqueFd connection = accept_one(listener, soon());
  std::string hello = request(Op::hello, {{}, {"", "", std::string(proto::kNonceBytes, 'n')}, proto::kVersion});
  net::recv_exact(connection.get(), std::as_writable_bytes(std::span(hello)), soon());
  net::send_all(connection.get(), answer, soon());
  return connection;
}

class TcpStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<TcpStore> client(const TcpStoreOptions& options = {}) {
    return std::make_unique<TcpStore>(server_->address(), soon(), options);
  }
  std::unique_ptr<TcpStoreServer> server_ = std::make_unique<TcpStoreServer>();
};

TEST_F(TcpStoreTest, RestLetsGoOfConnectionsThatNobodyHasUsedSinceTheLast) {
  const auto store = client();
  store->set("k", "v");
  store->rest();
  EXPECT_EQ(server_->client_count(), 1u) << "it was used just now";
  store->rest();
  EXPECT_TRUE(server_->wait_until_idle(soon()));
  EXPECT_EQ(store->get("k", soon()), "v") << "on a new one";
}

TEST_F(TcpStoreTest, ConnectWaitsForAServerThatComesLaterUpToItsDeadline) {
  const net::HostPort address = server_->address();
  server_.reset();
  expect_text(error_of<Timeout>([&] { TcpStore store(address, Deadline::after(milliseconds(50))); }),
              {address.to_string(), "Connection refused", "of 0.05 s"});
  std::thread late([&] { TcpStore(address, soon()).set("k", "v"); });
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
      expect_text(error_of<StoreLost>([&] { store->get("never" + std::to_string(i), Deadline::never()); }), {address});
    });
  }
  while (client()->add("waiting", 0) < kWaiters) {
  }
  server_.reset();
  for (std::thread& waiter : waiters) waiter.join();
  expect_text(error_of<StoreLost>([&] { store->set("k", "v"); }), {address});
  expect_text(error_of<StoreLost>([&] { store->get("k", soon()); }), {address});
}

TEST_F(TcpStoreTest, ASilentServerIsLostAfterTheRequestTimeout) {
  // Connections are taken by the kernel and greeted here, then nobody answers, as when the host process is stopped.
  const UniqueFd listener = net::tcp_listen({"127.0.0.1", 0});
  UniqueFd connection;
  std::thread greeter([&] { connection = answer_greeting(listener.get(), kWelcome); });
  TcpStore store(net::local_address(listener.get()), soon(),
                 {.request_timeout = milliseconds(50), .cancel_timeout = milliseconds(20)});
  greeter.join();
  expect_text(error_of<StoreLost>([&] { store.get("k", Deadline::after(milliseconds(10))); }), {"may be stopped"});
  expect_message("store", "set at a silent server", error_of<StoreLost>([&] { store.set("k", "v"); }));
}

TEST_F(TcpStoreTest, AnotherProgramAtTheAddressIsSaidToBeOne) {
  const UniqueFd listener = net::tcp_listen({"127.0.0.1", 0});
  const net::HostPort address = net::local_address(listener.get());
  std::atomic<bool> done{false};
  std::thread hangs_up([&] {  // on everybody, as a web server does on bytes that it does not understand
    while (!done) {
      if (net::wait_readable(listener.get(), Deadline::after(milliseconds(5)))) net::tcp_try_accept(listener.get());
    }
  });
  expect_text(error_of<Timeout>([&] { TcpStore store(address, Deadline::after(milliseconds(60))); }),
              {"another program"});
  done = true;
  hangs_up.join();
  UniqueFd connection;  // open until the client has read the answer
  std::thread answers([&] { connection = answer_greeting(listener.get(), "HTTP/1.1 400 Bad Request\r\n\r\n"); });
  expect_message("store", "no store answers", error_of<StoreError>([&] { TcpStore store(address, soon()); }));
  answers.join();
}

// A server that closes the second connection in its greeting.
TEST_F(TcpStoreTest, AConnectionThatIsClosedInItsGreetingIsOpenedAgain) {
  const UniqueFd listener = net::tcp_listen({"127.0.0.1", 0});
  const net::HostPort address = net::local_address(listener.get());
  std::thread server([&] {
    std::vector<UniqueFd> connections;
    for (const std::string& all : {kWelcome, std::string(), kWelcome + frame(proto::kOk)}) {
      connections.push_back(accept_one(listener.get(), soon()));
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

TEST_F(TcpStoreTest, WhatIsTooLongIsRefusedBeforeItIsSent) {
  const auto store = client();
  const std::string longest_key(8191, 'k');
  store->set(longest_key, "v");
  EXPECT_THROW(store->set(longest_key + "k", "v"), InvalidArgument);
  EXPECT_THROW(store->check(std::vector<std::string>(131073, "k")), InvalidArgument);
  EXPECT_THROW(store->check(std::vector<std::string>(9000, longest_key)), InvalidArgument) << "over 64 MB";
  EXPECT_EQ(store->get(longest_key, soon()), "v") << "the connection is whole";
}

TEST_F(TcpStoreTest, WhatTheServerRefusesIsSaidAndTheClientIsServedOn) {
  server_ = std::make_unique<TcpStoreServer>(
      TcpStoreServerOptions{.limits = {.max_message_bytes = 3000}, .max_stored_bytes = 5000});
  const auto store = client();
  const std::vector<std::string> keys = {"a", "b", "c", "d"};
  for (const std::string& key : keys) store->set(key, std::string(1000, 'x'));
  expect_message("store", "get", error_of<StoreError>([&] { store->multi_get(keys, soon()); }));
  expect_message("store", "set", error_of<StoreError>([&] { store->set("e", std::string(1000, 'x')); }));
  EXPECT_EQ(store->num_keys(), 4);
  EXPECT_TRUE(store->erase("a"));
  store->set("e", std::string(1000, 'x'));
}

}  // namespace
}  // namespace lockstep::store::tcp_store_test
