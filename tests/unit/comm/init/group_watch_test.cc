// SPDX-License-Identifier: Apache-2.0
// What befalls others, and what it means for a group and for a store that it waits at.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <new>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/comm/group_internals.h"
#include "runtime/comm/init/group_watch.h"
#include "runtime/comm/init/watched_store.h"
#include "runtime/comm/process_group_base.h"
#include "runtime/comm/single.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/hash_store.h"
#include "runtime/store/server/tcp_store_server.h"
#include "tests/support/child.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"

namespace lockstep::group_watch_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_message;
using lockstep::testing::expect_text;
using membership::MemberEvent;
using namespace std::chrono_literals;

using What = Consequence::Kind;

MemberEvent of_store(MemberEvent::Kind kind, bool host_answers = true) {
  return {.kind = kind,
          .cause = {.text = "stopped answering"},
          .address = "10.0.0.7:29400",
          .host = membership::ProcessInfo{.host = "n1", .pid = 100, .boot_id = "b", .pid_namespace = "1"},
          .host_answers = host_answers};
}

struct Befallen {
  const char* what;
  MemberEvent event;
  StoreHost store_host;
  int rank;
  bool host_has_left;
  What wanted;
};

TEST(ConsequenceOf, WhatBefallsARankOrTheStore) {
  using Kind = MemberEvent::Kind;
  const auto of_rank = [](Kind kind, int rank) -> MemberEvent {
    return {.kind = kind, .cause = {.rank = rank, .text = "rank ..."}};
  };
  MemberEvent of_relay = of_store(Kind::store_silent), nameless = of_store(Kind::store_lost);
  of_relay.is_of_relay = true;
  nameless.host.reset();
  constexpr auto kRankZero = StoreHost::rank_zero, kLauncher = StoreHost::launcher;
  const Befallen cases[] = {
      {"lost", of_rank(Kind::lost, 2), kRankZero, 1, false, What::fail},
      {"silent", of_rank(Kind::silent, 2), kRankZero, 1, false, What::fail},
      {"failed", of_rank(Kind::failed, 2), kRankZero, 1, false, What::fail},
      {"silent itself", of_rank(Kind::silent, 1), kRankZero, 1, false, What::fail},
      {"left", of_rank(Kind::left, 2), kRankZero, 1, false, What::none},
      {"rank 0's store is lost", of_store(Kind::store_lost), kRankZero, 1, false, What::fail},
      {"rank 0's store is silent", of_store(Kind::store_silent), kRankZero, 1, false, What::fail},
      {"rank 0 has left", of_store(Kind::store_lost), kRankZero, 1, true, What::none},
      {"its own store", of_store(Kind::store_silent), kRankZero, 0, false, What::none},
      {"the launcher's store is lost", of_store(Kind::store_lost), kLauncher, 1, true, What::fail},
      {"the launcher's host is silent", of_store(Kind::store_silent, false), kLauncher, 1, false, What::fail},
      // A launcher that is stopped harms nobody.
      {"the launcher is silent", of_store(Kind::store_silent, true), kLauncher, 1, false, What::warn},
      {"this host's launcher is silent", of_relay, kLauncher, 1, false, What::warn},
      {"the launcher answers", of_store(Kind::store_answers), kLauncher, 1, false, What::warn},
      {"a nameless launcher", nameless, kLauncher, 1, false, What::fail}};
  for (const Befallen& one : cases) {
    SCOPED_TRACE(one.what);
    const Consequence consequence = consequence_of(one.event, one.store_host, one.rank, one.host_has_left);
    EXPECT_EQ(consequence.kind, one.wanted);
    if (one.wanted == What::none) continue;
    if (one.event.cause.rank >= 0) {
      EXPECT_EQ(consequence.cause, one.event.cause);
      continue;
    }
    EXPECT_EQ(consequence.cause.rank, one.store_host == kRankZero ? 0 : -1);
    EXPECT_EQ(consequence.cause.reporter, one.rank);
    EXPECT_EQ(consequence.cause.pid, one.event.host ? 100 : 0);
    expect_message("comm", one.what, consequence.cause.text);
  }
}

MemberEvent loss_of(int rank, const std::string& text) {
  return {
      .kind = MemberEvent::Kind::lost, .cause = {.kind = Cause::Kind::lost, .rank = rank, .text = text}, .number = 1};
}
MemberEvent end_of(int rank) { return {.kind = MemberEvent::Kind::left, .cause = {.rank = rank}, .number = 3}; }

std::shared_ptr<ProcessGroup> single() {
  GroupContext context;
  context.roster.resize(1);
  context.store = std::make_shared<store::HashStore>();
  return single_backend().create(context, Deadline::never());
}

std::string failure_of(ProcessGroup& group) {
  try {
    group.barrier().wait();
    return "none";
  } catch (const PeerLost& error) {
    return error.what();
  }
}

TEST(GroupWatch, FailsTheGroupWithTheFirstCause) {
  GroupWatch watch(StoreHost::rank_zero, 1);
  const auto group = single();
  watch.attach(*group);
  EXPECT_EQ(failure_of(*group), "none");
  watch.take(end_of(2));
  EXPECT_EQ(failure_of(*group), "none");
  watch.take(loss_of(2, "the first"));
  watch.take({.kind = MemberEvent::Kind::failed, .cause = {.rank = 0, .text = "the second"}, .number = 2});
  EXPECT_EQ(failure_of(*group), "the first");
}

TEST(GroupWatch, WhatCameBeforeTheGroupFailsItAsSoonAsItIsThere) {
  GroupWatch watch(StoreHost::rank_zero, 1);
  watch.take(loss_of(2, "the first"));
  watch.take(of_store(MemberEvent::Kind::store_lost));
  const auto group = single();
  watch.attach(*group);
  EXPECT_EQ(failure_of(*group), "the first");
}

TEST(GroupWatch, AGroupThatIsGoneIsLeftAlone) {
  GroupWatch watch(StoreHost::rank_zero, 1);
  auto group = single();
  watch.attach(*group);
  watch.detach(*group);
  group.reset();
  watch.take(loss_of(2, "late"));
  EXPECT_EQ(watch.position().sequence, 0);
}

// Of ranks 1 and 3 of a job of four, as a group of its own.
std::shared_ptr<ProcessGroup> part_of_job() {
  GroupContext context;
  for (const int rank : {1, 3}) context.roster.push_back({rank, 0, 100 + rank, "n1", "boot", "net", "odd"});
  context.store = std::make_shared<store::HashStore>();
  return single_backend().create(context, Deadline::never());
}

TEST(GroupWatch, AGroupWithinTheJobsFailsWithItsOwnRanks) {
  GroupWatch watch(StoreHost::launcher, 1);
  const auto job = single();
  const auto part = part_of_job();
  watch.attach(*job);
  watch.attach(*part);
  watch.take(loss_of(2, "rank 2 is lost"));
  EXPECT_EQ(failure_of(*job), "rank 2 is lost");
  EXPECT_EQ(failure_of(*part), "none");
  const auto later = part_of_job();
  watch.attach(*later);
  watch.take(loss_of(3, "rank 3 is lost"));
  EXPECT_EQ(failure_of(*job), "rank 2 is lost");
  EXPECT_EQ(failure_of(*part), "group 'odd' (ranks 1 and 3): rank 3 is lost");
  EXPECT_EQ(failure_of(*later), "group 'odd' (ranks 1 and 3): rank 3 is lost");
  EXPECT_EQ(error_of<PeerLost>([&] { watch.check(); }), "rank 2 is lost");
  EXPECT_EQ(error_of<PeerLost>([&] { watch.check(&part->roster()); }), "rank 3 is lost");
}

// What ended the job's group is no end of a rank.
TEST(GroupWatch, AGroupWithinTheJobsOutlivesItsTimeoutsAndMismatchesNotItsStore) {
  GroupWatch watch(StoreHost::launcher, 1);
  const auto part = part_of_job();
  watch.attach(*part);
  for (const auto kind : {Cause::Kind::timeout, Cause::Kind::mismatch, Cause::Kind::left, Cause::Kind::aborted}) {
    watch.take({.kind = MemberEvent::Kind::failed, .cause = {.kind = kind, .rank = 3, .text = "of the job"}});
  }
  EXPECT_EQ(failure_of(*part), "none");
  EXPECT_NO_THROW(watch.check(&part->roster()));
  watch.take({.kind = MemberEvent::Kind::failed, .cause = {.kind = Cause::Kind::failed, .rank = 3, .text = "threw"}});
  EXPECT_EQ(failure_of(*part), "group 'odd' (ranks 1 and 3): threw");
  GroupWatch watch_of_store(StoreHost::launcher, 1);
  const auto later = part_of_job();
  watch_of_store.attach(*later);
  watch_of_store.take(of_store(MemberEvent::Kind::store_lost));
  expect_text(failure_of(*later), {"group 'odd' (ranks 1 and 3): the launcher (host n1, pid 100), which hosts"});
}

// The job's group says how far the rank is; the step may be another's.
TEST(GroupWatch, TellsTheStepOfWhicheverGroupTrains) {
  GroupWatch watch(StoreHost::launcher, 1);
  const auto job = single();
  auto part = part_of_job();
  watch.attach(*job);
  watch.attach(*part);
  part->internals().set_step(17);
  job->barrier().wait();
  EXPECT_EQ(watch.position().step, 17);
  EXPECT_EQ(watch.position().sequence, job->internals().last_sequence());
  watch.detach(*part);
  part.reset();
  EXPECT_EQ(watch.position().step, 17) << "what it was at";
}

// A connection of this rank's may see the store's end before the link does, which knows why.
TEST(GroupWatch, WhoHasLostTheStoreWaitsForWhatTheLinkKnows) {
  GroupWatch watch(StoreHost::rank_zero, 1);
  EXPECT_NO_THROW(watch.check_after_loss()) << "there is no link to wait for";
  watch.begin({});
  std::thread link([&] { watch.take(loss_of(0, "rank 0 has no disk left")); });
  EXPECT_EQ(error_of<PeerLost>([&] { watch.check_after_loss(); }), "rank 0 has no disk left");
  link.join();
}

TEST(GroupWatch, AStoreOfRankZeroThatHasLeftMayEnd) {
  GroupWatch watch(StoreHost::rank_zero, 1);
  const auto group = single();
  watch.attach(*group);
  watch.begin({});
  std::thread link([&] {
    watch.take(end_of(0));
    watch.take(of_store(MemberEvent::Kind::store_lost));
  });
  EXPECT_NO_THROW(watch.check_after_loss());
  link.join();
  EXPECT_EQ(failure_of(*group), "none");
}

// A group that has no memory, or no descriptor, for its own failure.
class UnableGroup : public comm::ProcessGroupBase {
 public:
  using ProcessGroupBase::ProcessGroupBase;
  std::string_view backend() const override { return "unable"; }
  Arena allocate(std::size_t) override { return {}; }
  void progress() override {}
  void abort(const std::string&) override { throw std::bad_alloc(); }

 private:
  Work start(comm::CollectiveArgs) override { return {}; }
  Work start_message(const comm::P2pOp&) override { return {}; }
};

TEST(GroupWatch, AGroupThatCantBeFailedKeepsNoOtherFromItsFailureAndEnds) {
  GroupContext context;
  context.roster.resize(1);
  UnableGroup unable(context);
  const auto group = single();
  GroupWatch watch(StoreHost::rank_zero, 1);
  watch.attach(unable);
  watch.attach(*group);
  watch.take(loss_of(2, "rank 2 is lost"));
  EXPECT_EQ(failure_of(*group), "rank 2 is lost");
  watch.detach(unable);
}

using Request = std::function<void()>;
const std::vector<std::string> kNever = {"never"};

void lose_rank_1(GroupWatch& watch) { watch.take(loss_of(1, "rank 1 is lost")); }
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
    watch_->take(of_store(MemberEvent::Kind::store_silent, false));
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
}  // namespace lockstep::group_watch_test
