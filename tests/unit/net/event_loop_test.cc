// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/event_loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/net/stream.h"

namespace lockstep::net::event_loop_test {
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

TEST(EventLoop, ServesWhatIsReadableAndStops) {
  EventLoop loop;
  Pair one;
  Pair two;
  std::string seen;
  for (Pair* pair : {&one, &two}) {
    loop.add(pair->here.get(), EPOLLIN, [&, pair](std::uint32_t events) {
      EXPECT_NE(events & EPOLLIN, 0u);
      char byte = 0;
      recv_exact(pair->here.get(), std::as_writable_bytes(std::span(&byte, 1)), soon());
      seen.push_back(byte);
      if (seen.size() == 3) loop.stop();
    });
  }
  std::thread sender([&] {
    send_all(one.there.get(), "a", soon());
    send_all(two.there.get(), "b", soon());
    send_all(one.there.get(), "c", soon());
  });
  loop.run();
  sender.join();
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, "abc");
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
}  // namespace lockstep::net::event_loop_test
