// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/turn.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace lockstep::wire {
namespace {

// Runs the communication thread's part until it has been told to end: whenever it has the turn it calls `what`.
class CommunicationThread {
 public:
  template <typename What>
  CommunicationThread(Turn& turn, What what)
      : thread_([this, &turn, what] {
          turn.take();
          while (!ends_.load()) {
            what();
            if (turn.is_wanted()) turn.lend();
          }
          turn.release();
        }) {}
  ~CommunicationThread() {
    ends_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

TEST(TurnTest, OneAtATimeHasItAndAllGetIt) {
  Turn turn;
  int value = 0;  // of whoever has the turn: ThreadSanitizer looks
  std::atomic<int> by_communication_thread{0};
  {
    CommunicationThread communication(turn, [&] {
      ++value;
      ++by_communication_thread;
    });
    std::vector<std::thread> callers;
    for (int i = 0; i < 3; ++i) {
      callers.emplace_back([&] {
        for (int times = 0; times < 200;) {
          Turn::Caller caller(turn);
          while (!caller.take()) std::this_thread::yield();
          EXPECT_TRUE(caller.take()) << "once is enough";
          ++value;
          ++times;
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    const int before = by_communication_thread.load();
    while (by_communication_thread.load() == before) std::this_thread::yield();  // it comes back by itself
  }
  EXPECT_EQ(value, 600 + by_communication_thread.load());
}

TEST(TurnTest, WhoIsCalledComesThoughCallersFollow) {
  Turn turn;
  std::atomic<int> turns{0};
  CommunicationThread communication(turn, [&] { ++turns; });
  for (int i = 0; i < 50; ++i) {
    const int before = turns.load();
    bool has_come = false;
    // Callers come without a gap; each has the turn in its time, or finds the communication thread at it.
    while (!has_come) {
      Turn::Caller caller(turn);
      if (caller.take()) caller.leave_work();
      has_come = turns.load() != before;
    }
  }
}

TEST(TurnTest, NobodyWantsItOnceTheCallersAreGone) {
  Turn turn;
  EXPECT_FALSE(turn.is_wanted());
  {
    const Turn::Caller one(turn);
    const Turn::Caller two(turn);
    EXPECT_TRUE(turn.is_wanted());
  }
  EXPECT_FALSE(turn.is_wanted());
}

// As where a signal's handler ends the process, on the thread of a caller.
TEST(TurnTest, ACallerGivesItUpFromBelow) {
  Turn turn;
  Turn other;
  Turn::Caller caller(turn);
  Turn::Caller inner(other);
  ASSERT_TRUE(caller.take());
  ASSERT_TRUE(inner.take());
  turn.give_up_of_this_thread();
  Turn::Caller next(turn);
  EXPECT_TRUE(next.take());
  Turn::Caller next_of_other(other);
  EXPECT_FALSE(next_of_other.take());
}

TEST(TurnTest, NobodyHasItOnceItIsOver) {
  Turn turn;
  turn.take();
  {
    Turn::Caller caller(turn);
    EXPECT_FALSE(caller.take()) << "the communication thread has it";
  }
  turn.end();
  Turn::Caller caller(turn);
  EXPECT_FALSE(caller.take());
}

}  // namespace
}  // namespace lockstep::wire
