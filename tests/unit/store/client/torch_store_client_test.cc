// SPDX-License-Identifier: Apache-2.0
// The client at a server that speaks as one of today, and as one of 1.13, which hangs up on the current greeting.
// tests/compat has the real ones.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/client/torch_store_client.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/unit/store/server/server_test.h"

namespace lockstep::store::torch_store_client_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_message;
using lockstep::testing::expect_text;
using std::chrono::milliseconds;

// Our server with an ear for 1.13 only: hangs up on who begins with VALIDATE, and passes the bytes of all others on.
class LegacyServer {
 public:
  LegacyServer() : listener_(net::tcp_listen({"127.0.0.1", 0})) {
    acceptor_ = std::thread([this] { accept(); });
  }
  ~LegacyServer() {
    stopping_ = true;
    acceptor_.join();  // The others are started by this one.
    for (std::thread& thread : threads_) thread.join();
  }
  net::HostPort address() const { return net::local_address(listener_.get()); }
  int refused() const { return refused_; }

 private:
  void accept() {
    while (!stopping_) {
      if (!net::wait_readable(listener_.get(), Deadline::after(milliseconds(5)))) continue;
      UniqueFd client = net::tcp_try_accept(listener_.get());
      if (client) threads_.emplace_back([this, fd = std::move(client)] { serve(fd.get()); });
    }
  }

  void serve(int client) {
    std::array<std::byte, 65536> bytes;
    try {
      const UniqueFd server = net::tcp_connect(server_.address(), soon());
      for (bool first = true; !stopping_;) {
        std::array<pollfd, 2> ready = {pollfd{client, POLLIN, 0}, pollfd{server.get(), POLLIN, 0}};
        if (::poll(ready.data(), ready.size(), 5) <= 0) continue;
        for (std::size_t from = 0; from < 2; ++from) {
          if (ready[from].revents == 0) continue;
          const std::size_t count = net::recv_some(ready[from].fd, bytes, soon());
          if (first && count >= 2 && bytes[0] == std::byte{0} && bytes[1] == std::byte{0xce}) {
            ++refused_;
            return;
          }
          first = false;
          net::send_all(ready[1 - from].fd, std::span(bytes).first(count), soon());
        }
      }
    } catch (const net::ConnectionClosed&) {  // One side has gone, so the other goes too.
    }
  }

  TcpStoreServer server_;
  UniqueFd listener_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> refused_ = 0;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

// What the client does with a server of either time.
void use(const net::HostPort& server) {
  TorchStoreClient client(server, soon());
  TorchStoreClient other(server, soon());
  client.set("k", "v");
  EXPECT_EQ(other.get("k", soon()), "v");
  EXPECT_EQ(other.num_keys(), 1);
  std::thread late([&] { other.set("late", ""); });
  EXPECT_EQ(client.get("late", soon()), "");
  late.join();
  other.erase("k");
  EXPECT_EQ(client.num_keys(), 1);
  // A wait that timed out poisons nothing: its answer comes on a connection that is closed.
  for (int i = 0; i < 3; ++i) {
    const std::string key = "in vain " + std::to_string(i);
    expect_text(error_of<Timeout>([&] { client.get(key, Deadline::after(milliseconds(5))); }), {key});
    other.set(key, "v");
    EXPECT_EQ(client.num_keys(), 2 + i);
    EXPECT_EQ(client.get(key, soon()), "v");
  }
}

TEST(TorchStoreClient, UsesACurrentServer) {
  const TcpStoreServer server;
  use(server.address());
  TcpStore store(server.address(), soon());
  const std::vector<std::string> keys = store.list_keys();
  EXPECT_EQ(keys, (std::vector<std::string>{"in vain 0", "in vain 1", "in vain 2", "late"})) << "as others see them";
}

TEST(TorchStoreClient, FindsOutThatAServerIsOf113) {
  const LegacyServer server;
  use(server.address());
  EXPECT_GE(server.refused(), 1);
}

TEST(TorchStoreClient, NamesTheServerThatHasGoneOrDoesNotServeIt) {
  auto server = std::make_unique<TcpStoreServer>();
  TorchStoreClient client(server->address(), soon());
  server.reset();
  expect_text(error_of<StoreError>([&] { client.set("k", "v"); }), {"set 'k'", "torchrun's agent"});
  expect_message("store", "gone", error_of<StoreError>([&] { client.set("k", "v"); }));
  const TcpStoreServer closed({.secret = Secret::random()});
  EXPECT_THROW(TorchStoreClient(closed.address(), Deadline::after(milliseconds(60))), Timeout);
}

}  // namespace
}  // namespace lockstep::store::torch_store_client_test
