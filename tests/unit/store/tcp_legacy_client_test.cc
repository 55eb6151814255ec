// Our client at a server of PyTorch 1.13, which hangs up on the current greeting. tests/compat has the real one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/store/tcp_store.h"
#include "tests/unit/store/server_test.h"

namespace lockstep::store {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

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

class LegacyClientTest : public testing::Test {
 protected:
  LegacyServer server_;
  Endpoint endpoint_{.address = server_.address(), .protocol = Endpoint::Protocol::torch};
  TcpStore store_{endpoint_, soon()};
};

TEST_F(LegacyClientTest, FindsOutWhatTheServerSpeaks) {
  EXPECT_GE(server_.refused(), 1);
  store_.set("k", "v");
  TcpStore other(endpoint_, soon());
  EXPECT_EQ(other.get("k", soon()), "v");
  EXPECT_EQ(other.add("n", 5), 5);
  EXPECT_EQ(other.num_keys(), 2);
  EXPECT_EQ(other.compare_set("k", "v", "w"), "w");
  EXPECT_TRUE(other.erase("k"));
  EXPECT_FALSE(other.check(std::vector<std::string>{"k", "n"}));
}

TEST_F(LegacyClientTest, PutsTogetherWhat113Lacks) {
  const std::vector<std::string> keys = {"a", "b"};
  store_.multi_set(keys, std::vector<std::string>{"1", "2"});
  EXPECT_EQ(store_.multi_get(keys, soon()), (std::vector<std::string>{"1", "2"}));
}

TEST_F(LegacyClientTest, AWaitThatTimedOutPoisonsNothing) {
  for (int i = 0; i < 3; ++i) {
    const std::string late = "late" + std::to_string(i);
    EXPECT_THROW(store_.get(late, Deadline::after(milliseconds(5))), Timeout);
    store_.set(late, "v");  // The server answers the wait now, on a connection that nobody uses any more.
    EXPECT_EQ(store_.add("n", 42), 42 * (i + 1));
  }
  EXPECT_EQ(store_.get("late0", soon()), "v");
}

TEST_F(LegacyClientTest, BarriersAreMadeOfKeys) {
  std::thread other([&] {
    TcpStore own(endpoint_, soon());
    for (int i = 0; i < 3; ++i) own.barrier("b", 1, 2, soon());
  });
  for (int i = 0; i < 3; ++i) store_.barrier("b", 0, 2, soon());
  other.join();
  EXPECT_THROW(store_.barrier("b", 0, 2, Deadline::after(milliseconds(5))), Timeout);
}

TEST_F(LegacyClientTest, WhatItCantDoItSays) {
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { store_.queue_push("q", "v"); }, [&] { store_.queue_pop("q", soon()); },
           [&] { store_.queue_length("q"); }, [&] { store_.list_keys(); }, [&] { store_.append("k", "v"); }}) {
    try {
      call();
      FAIL() << "nothing was thrown";
    } catch (const StoreError& error) {
      EXPECT_THAT(error.what(), HasSubstr("torch 1.13"));
    }
  }
  store_.set("k", "v");
}

}  // namespace
}  // namespace lockstep::store
