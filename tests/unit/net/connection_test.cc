// SPDX-License-Identifier: Apache-2.0
// Connections that are buffered, and the loop that serves them.
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/net/connection.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/stream.h"

namespace lockstep::net::connection_test {
namespace {

using std::chrono::milliseconds;

Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

struct Pair {
  Pair() {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) {
      throw std::runtime_error("socketpair");
    }
    here.reset(fds[0]);
    there.reset(fds[1]);
  }
  UniqueFd here;
  UniqueFd there;
};

class ConnectionTest : public ::testing::Test {
 protected:
  ConnectionTest() {
    Pair pair;
    connection_ = Connection(std::move(pair.here));
    peer_ = std::move(pair.there);
  }
  void send(std::string_view bytes) const { send_all(peer_.get(), bytes, soon()); }

  Connection connection_;
  UniqueFd peer_;
};

TEST_F(ConnectionTest, KeepsWhatIsNotConsumed) {
  EXPECT_EQ(connection_.receive_now(), 0u) << "nothing has come";
  send("one\ntwo\nth");
  EXPECT_EQ(connection_.receive_now(), 10u);
  connection_.consume(4);
  EXPECT_EQ(connection_.input(), "two\nth");
  send("ree\n");
  connection_.receive(soon());
  EXPECT_EQ(connection_.input(), "two\nthree\n");
  connection_.consume(10);
  EXPECT_EQ(connection_.input(), "");
  EXPECT_THROW(connection_.receive(Deadline::after(std::chrono::milliseconds(5))), Timeout);
}

TEST_F(ConnectionTest, SendsAsMuchAsThePeerTakes) {
  const std::string wanted(3'000'000, 'x');
  std::string output = wanted;
  ASSERT_TRUE(connection_.send_now(output));
  EXPECT_FALSE(output.empty()) << "the peer reads nothing yet";
  std::string taken;
  while (taken.size() < wanted.size()) {
    ASSERT_TRUE(connection_.send_now(output));
    std::string part(200'000, '\0');
    part.resize(recv_now(peer_.get(), std::as_writable_bytes(std::span(part))));
    taken += part;
  }
  EXPECT_TRUE(taken == wanted);
  EXPECT_TRUE(output.empty());
}

TEST_F(ConnectionTest, TheEndOfThePeerComesAfterItsBytes) {
  send("last");
  peer_.reset();
  EXPECT_EQ(connection_.receive_now(), 4u);
  EXPECT_EQ(connection_.receive_now(), std::nullopt);
  EXPECT_EQ(errno, 0) << "it closed the connection";
  EXPECT_EQ(connection_.input(), "last");
  EXPECT_THROW(connection_.receive(soon()), ConnectionClosed);
  std::string output = "x";
  EXPECT_FALSE(connection_.send_now(output));
  EXPECT_EQ(errno, EPIPE);
}

TEST_F(ConnectionTest, APeerMayEndItsDirectionAlone) {
  send("request");
  ASSERT_EQ(::shutdown(peer_.get(), SHUT_WR), 0);
  EXPECT_EQ(connection_.receive_now(), 7u);
  EXPECT_EQ(connection_.receive_now(), std::nullopt);
  std::string output = "answer";
  EXPECT_TRUE(connection_.send_now(output));
  std::string answer(6, '\0');
  recv_exact(peer_.get(), std::as_writable_bytes(std::span(answer)), soon());
  EXPECT_EQ(answer, "answer");
}

TEST(EventLoop, AHandlerMayRemoveItselfAndOthersOfTheSameBatch) {
  EventLoop loop;
  std::vector<Pair> pairs(8);
  int calls = 0;
  for (Pair& pair : pairs) {
    send_all(pair.there.get(), "x", soon());
    loop.add(pair.here.get(), EPOLLIN, [&](std::uint32_t) {
      ++calls;
      for (Pair& each : pairs) {
        loop.remove(each.here.get());
        each.here.reset();
      }
      // New sockets get the numbers of those just closed; events of the old ones must not reach them.
      for (Pair& each : pairs) {
        each = Pair();
        loop.add(each.here.get(), EPOLLIN, [&](std::uint32_t) { FAIL() << "an event of a closed socket"; });
      }
      loop.stop();
    });
  }
  loop.run();
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, ChangeTurnsInterestOffAndOn) {
  EventLoop loop;
  Pair pair;
  send_all(pair.there.get(), "x", soon());
  bool on = false;
  loop.add(pair.here.get(), 0, [&](std::uint32_t events) {
    EXPECT_TRUE(on);
    EXPECT_NE(events & EPOLLIN, 0u);
    loop.stop();
  });
  loop.run_after(milliseconds(5), [&] {
    on = true;
    loop.change(pair.here.get(), EPOLLIN);
  });
  loop.run();
  EXPECT_TRUE(on);
}

TEST(EventLoop, TimersRunInOrderUnlessTheyAreCancelled) {
  EventLoop loop;
  std::string order;
  loop.run_after(milliseconds(8), [&] {
    order += "d";
    loop.stop();
  });
  const auto kept = loop.run_after(milliseconds(1), [&] { order += "b"; });
  loop.run_after(milliseconds(0), [&] { order += "a"; });
  const auto early = loop.run_after(milliseconds(0), [&] { order += "x"; });
  EventLoop::TimerId late = loop.run_after(milliseconds(5), [&] { order += "y"; });
  EventLoop::TimerId own;
  own = loop.run_after(milliseconds(3), [&] {
    order += "c";
    loop.cancel(own);  // it is running
    loop.cancel(late);
  });
  loop.cancel(early);
  loop.cancel(early);
  loop.cancel({});
  // So far away that a sum with the clock would not fit.
  loop.run_after(std::chrono::nanoseconds::max(), [&] { order += "z"; });
  loop.run();
  EXPECT_EQ(order, "abcd");
  loop.cancel(kept);
}

TEST(EventLoop, PostedTasksRunInTheLoopsThreadInOrder) {
  EventLoop loop;
  std::thread::id loop_thread;
  std::vector<int> order;
  std::thread runner([&] {
    loop_thread = std::this_thread::get_id();
    loop.run();
  });
  for (int i = 0; i < 1000; ++i) {
    loop.post([&, i] {
      EXPECT_EQ(std::this_thread::get_id(), loop_thread);
      order.push_back(i);
    });
  }
  loop.stop();
  runner.join();
  ASSERT_EQ(order.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(EventLoop, AnExceptionOfAHandlerEndsItAndSoDoesAStopBefore) {
  EventLoop loop;
  loop.post([] { throw std::runtime_error("handler"); });
  EXPECT_THROW(loop.run(), std::runtime_error);
  loop.stop();
  loop.run();
}

TEST(EventLoop, WhatOneHandlerThrowsKeepsNoOtherFromItsTurn) {
  EventLoop loop;
  Pair pair;
  std::vector<std::string> told;
  loop.post([] { throw std::runtime_error("a task"); });
  loop.post([&] {
    loop.add(pair.here.get(), EPOLLIN, [&](std::uint32_t) {
      loop.remove(pair.here.get());
      loop.run_after(milliseconds(0), [] { throw std::runtime_error("a timer"); });
      loop.run_after(milliseconds(0), [&] { loop.stop(); });
      throw std::runtime_error("a handler");
    });
  });
  send_all(pair.there.get(), "x", soon());
  loop.run([&](const std::exception& error) { told.emplace_back(error.what()); });
  EXPECT_EQ(told, (std::vector<std::string>{"a task", "a handler", "a timer"}));
}

TEST(EventLoop, NothingIsLeftOfAWatchThatCouldNotBeMade) {
  EventLoop loop;
  const int closed = Pair().here.get();
  EXPECT_THROW(loop.add(closed, EPOLLIN, [](std::uint32_t) {}), SystemError);
  EXPECT_THROW(loop.change(closed, EPOLLIN), std::out_of_range);
}

}  // namespace
}  // namespace lockstep::net::connection_test
