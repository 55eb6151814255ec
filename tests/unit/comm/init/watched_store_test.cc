// SPDX-License-Identifier: Apache-2.0
// A store that stops waiting when somebody is lost.
#include "runtime/comm/init/watched_store.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/hash_store.h"
#include "runtime/store/server/tcp_store_server.h"
#include "tests/support/child.h"
#include "tests/support/error_of.h"

namespace lockstep::watched_store_test {
namespace {

using lockstep::testing::error_of;
using namespace std::chrono_literals;

using Request = std::function<void()>;
const std::vector<std::string> kNever = {"never"};

void lose_rank_1(GroupWatch& watch) {
  watch.take(
      {.kind = membership::MemberEvent::Kind::lost, .cause = {.rank = 1, .text = "rank 1 is lost"}, .number = 1});
}
void expect_loss(const Request& request) { EXPECT_EQ(error_of<PeerLost>(request), "rank 1 is lost"); }

// Each request on a thread of its own, until `then` has been called.
void expect_losses(const std::vector<Request>& requests, const Request& then) {
  std::vector<std::thread> callers;
  for (const Request& request : requests) callers.emplace_back([&] { expect_loss(request); });
  then();
  for (std::thread& caller : callers) caller.join();
}

class WatchedStores : public ::testing::Test {
 protected:
  std::shared_ptr<store::HashStore> inner_ = std::make_shared<store::HashStore>();
  std::shared_ptr<GroupWatch> watch_ = std::make_shared<GroupWatch>(StoreHost::rank_zero, 0);
  WatchedStore store_{inner_, watch_};
};

TEST_F(WatchedStores, PassEverythingOn) {
  const Deadline deadline = Deadline::after(40s);
  const std::vector<std::string> keys = {"a", "b"};
  store_.set("a", "1");
  EXPECT_EQ(store_.get("a", deadline), "1");
  EXPECT_EQ(store_.add("a", 2), 3);
  EXPECT_EQ(store_.compare_set("a", "3", "4"), "4");
  EXPECT_FALSE(store_.check(keys));
  for (const std::string& key : keys) store_.set(key, key);
  store_.wait(keys, deadline);
  EXPECT_EQ(store_.multi_get(keys, deadline), keys);
  EXPECT_EQ(inner_->get("a", deadline), "a");
  EXPECT_EQ(store_.num_keys(), 2);
  EXPECT_EQ(store_.list_keys(), keys);
  EXPECT_TRUE(store_.erase("a"));
  EXPECT_EQ(store_.description(), inner_->description());
}

TEST_F(WatchedStores, ADeadlineIsTheCallersOwnInTheMessage) {
  const std::string text = error_of<Timeout>([&] { store_.get("never", Deadline::after(700ms)); });
  EXPECT_NE(text.find("'never'"), std::string::npos) << text;
  EXPECT_NE(text.find("of 0.7 s"), std::string::npos) << text;
}

TEST_F(WatchedStores, WhoWaitsHearsOfALossAndWhoAsksLater) {
  expect_losses({[&] { store_.wait(kNever, Deadline::never()); }}, [&] { lose_rank_1(*watch_); });
  expect_loss([&] { store_.check(kNever); });
  expect_loss([&] { store_.get("never", Deadline::after(0s)); });
  expect_loss([&] { store_.multi_get(kNever, Deadline::after(10ms)); });
}

TEST_F(WatchedStores, WhatIsThereIsGivenAfterALossToo) {
  store_.set("why", "rank 1 has no disk left");
  lose_rank_1(*watch_);
  const std::vector<std::string> keys = {"why"};
  EXPECT_EQ(store_.get("why", Deadline::after(40s)), "rank 1 has no disk left");
  EXPECT_EQ(store_.multi_get(keys, Deadline::after(0s)).front(), "rank 1 has no disk left");
  EXPECT_TRUE(store_.check(keys));
  store_.set("mine", "too");
  EXPECT_EQ(store_.num_keys(), 2);
}

// The launcher's store, in a process of its own that is stopped for longer than any answer of it may be late.
class StoreOfAnotherProcess : public ::testing::Test {
 protected:
  std::shared_ptr<store::TcpStore> client(const store::TcpStoreOptions& options = {.cancel_timeout = 50ms}) const {
    return std::make_shared<store::TcpStore>(address_, Deadline::after(40s), options);
  }
  void stop() const { ASSERT_NO_FATAL_FAILURE(server_.stop()); }

  const testing::Child server_{[](const testing::Line& line) {
    const store::TcpStoreServer server;
    return line.tell(server.address().port) ? testing::Child::stay() : 1;
  }};
  const net::HostPort address_{"127.0.0.1", server_.told<std::uint16_t>()};
  const std::shared_ptr<GroupWatch> watch_ = std::make_shared<GroupWatch>(StoreHost::launcher, 0);
};

TEST_F(StoreOfAnotherProcess, APauseOfItEndsNoWait) {
  WatchedStore store(client(), watch_);
  const auto other = client();
  stop();
  std::thread waiter([&] { EXPECT_EQ(store.get("late", Deadline::after(600s)), "came"); });
  // Longer than what an answer may be late, and than the slices that waits were once cut into. The pause itself is what
  // is tested: nothing tells its end.
  store::HashStore clock;
  EXPECT_THROW(clock.get("never", Deadline::after(1200ms)), Timeout);
  ASSERT_EQ(::kill(server_.pid(), SIGCONT), 0);
  other->set("late", "came");
  waiter.join();
}

// Not only waits: each request would otherwise have its own half a minute, here an hour.
TEST_F(StoreOfAnotherProcess, ItsSilenceEndsEveryRequestWithTheCause) {
  WatchedStore store(client({.request_timeout = 1h, .cancel_timeout = 50ms}), watch_);
  stop();
  const std::vector<std::string> keys = {"k"};
  const std::string large(store::kMaxValueBytes, 'v');  // more than a socket takes from who is not heard
  std::vector<Request> requests = {[&] { store.set("k", "v"); },
                                   [&] { store.set("k", large); },
                                   [&] { store.add("k", 1); },
                                   [&] { store.check(keys); },
                                   [&] { store.erase("k"); },
                                   [&] { store.num_keys(); },
                                   [&] { store.list_keys(); },
                                   [&] { store.compare_set("k", "", "v"); },
                                   [&] { store.get("never", Deadline::never()); }};
  expect_losses(requests, [&] { lose_rank_1(*watch_); });
  for (const Request& request : requests) expect_loss(request);
}

// After another's failure a store has time to answer; once it is known to be silent it has none.
TEST_F(StoreOfAnotherProcess, ItsKnownSilenceEndsWhatWouldElseBeWaitedForLonger) {
  WatchedStore store(client({.request_timeout = 1h, .cancel_timeout = 1h, .give_up_timeout = 50ms}), watch_);
  stop();
  expect_losses({[&] { store.set("k", "v"); }, [&] { store.get("never", Deadline::never()); }}, [&] {
    lose_rank_1(*watch_);
    watch_->take({.kind = membership::MemberEvent::Kind::store_silent,
                  .cause = {.text = "stopped answering"},
                  .host_answers = false});
  });
}

TEST_F(StoreOfAnotherProcess, AFailureCancelsWhatWaitsThereAndLeavesWhatIsThere) {
  WatchedStore store(client(), watch_);
  const auto other = client();
  expect_losses({[&] { store.get("never", Deadline::never()); }, [&] { store.wait(kNever, Deadline::never()); }},
                [&] { lose_rank_1(*watch_); });
  other->set("why", "no disk left");
  EXPECT_EQ(store.get("why", Deadline::never()), "no disk left");
}

}  // namespace
}  // namespace lockstep::watched_store_test
