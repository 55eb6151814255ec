// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/progress_token.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/support/on_threads.h"

namespace lockstep::wire::progress_token_test {
namespace {

// Runs the communication thread's part until it has been told to end: whenever it has the token it calls `what`.
class CommunicationThread {
 public:
  template <typename What>
  CommunicationThread(ProgressToken& token, What what)
      : thread_([this, &token, what] {
          token.take();
          while (!ends_.load()) {
            what();
            if (token.is_wanted()) token.yield_to_caller();
          }
          token.release();
        }) {}
  ~CommunicationThread() {
    ends_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

TEST(ProgressTokenTest, OneAtATimeHasItAndAllGetIt) {
  ProgressToken token;
  int value = 0;  // of whoever has the token: ThreadSanitizer looks
  std::atomic<int> by_communication_thread{0};
  {
    CommunicationThread communication(token, [&] {
      ++value;
      ++by_communication_thread;
    });
    lockstep::testing::on_threads(3, [&](int /*caller*/) {
      for (int times = 0; times < 200; ++times) {
        ProgressToken::Caller caller(token);
        while (!caller.take()) std::this_thread::yield();
        EXPECT_TRUE(caller.take()) << "once is enough";
        ++value;
      }
    });
    const int before = by_communication_thread.load();
    while (by_communication_thread.load() == before) std::this_thread::yield();  // it comes back by itself
  }
  EXPECT_EQ(value, 600 + by_communication_thread.load());
}

TEST(ProgressTokenTest, WhoIsCalledComesThoughCallersFollow) {
  ProgressToken token;
  std::atomic<int> turns{0};
  CommunicationThread communication(token, [&] { ++turns; });
  for (int i = 0; i < 50; ++i) {
    const int before = turns.load();
    bool has_come = false;
    // Callers come without a gap; each has the token in its time, or finds the communication thread at it.
    while (!has_come) {
      ProgressToken::Caller caller(token);
      if (caller.take()) caller.leave_work();
      has_come = turns.load() != before;
    }
  }
}

TEST(ProgressTokenTest, NobodyWantsItOnceTheCallersAreGone) {
  ProgressToken token;
  EXPECT_FALSE(token.is_wanted());
  {
    const ProgressToken::Caller one(token);
    const ProgressToken::Caller two(token);
    EXPECT_TRUE(token.is_wanted());
  }
  EXPECT_FALSE(token.is_wanted());
}

// As where a signal's handler ends the process, on the thread of a caller.
TEST(ProgressTokenTest, ACallerGivesItUpFromBelow) {
  ProgressToken token;
  ProgressToken other;
  ProgressToken::Caller caller(token);
  ProgressToken::Caller inner(other);
  ASSERT_TRUE(caller.take());
  ASSERT_TRUE(inner.take());
  token.give_up_of_this_thread();
  ProgressToken::Caller next(token);
  EXPECT_TRUE(next.take());
  ProgressToken::Caller next_of_other(other);
  EXPECT_FALSE(next_of_other.take());
}

TEST(ProgressTokenTest, NobodyHasItOnceItIsOver) {
  ProgressToken token;
  token.take();
  {
    ProgressToken::Caller caller(token);
    EXPECT_FALSE(caller.take()) << "the communication thread has it";
  }
  token.end();
  ProgressToken::Caller caller(token);
  EXPECT_FALSE(caller.take());
}

}  // namespace
}  // namespace lockstep::wire::progress_token_test
