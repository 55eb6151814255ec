// SPDX-License-Identifier: Apache-2.0
// Groups that follow each other at one place or live beside each other there, and how rank 0 leaves.
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/membership/member_link.h"
#include "runtime/rendezvous/join.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/server/tcp_store_server.h"
#include "tests/support/error_of.h"
#include "tests/unit/rendezvous/meeting/meeting_ranks.h"

namespace lockstep::rendezvous::meet_groups_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using namespace std::chrono_literals;

// Each means by which rank 0 hosts the store.
class GroupsThatFollow : public ::testing::TestWithParam<RendezvousMethod> {
 protected:
  GroupsThatFollow() { place_.plan.leave_timeout = std::chrono::hours(1); }

  Meeting connect_to_job_store(int number, std::chrono::nanoseconds limit = 20s) const {
    return meet(place_.plan, rank_of(number, 2), Deadline::after(limit));
  }
  void expect_both_join(const Meeting& zero, const Meeting& one) const {
    const auto join_as = [](int number, store::Store& store) {
      Identity identity = rank_of(number, 2);
      EXPECT_EQ(join(store, identity, self_member(identity), soon()).roster.size(), 2u);
    };
    std::thread other([&] { join_as(1, *one.store); });
    join_as(0, *zero.store);
    other.join();
  }

  Place place_{GetParam()};
};

TEST_P(GroupsThatFollow, ARankThatIsFasterWaitsUntilRankZeroHasLeft) {
  Meeting zero = connect_to_job_store(0);
  Meeting one = connect_to_job_store(1);
  expect_both_join(zero, one);
  one.store.reset();
  expect_text(error_of<Timeout>([&] { connect_to_job_store(1, 50ms); }), {"rank 0 has not left it yet"});
  std::thread faster([&] { one = connect_to_job_store(1); });
  zero.store.reset();
  zero = connect_to_job_store(0);
  faster.join();
  expect_both_join(zero, one);
  one.store.reset();
}

TEST_P(GroupsThatFollow, ARankZeroThatIsFasterWaitsUntilTheOthersHaveLeft) {
  Meeting zero = connect_to_job_store(0);
  Meeting one = connect_to_job_store(1);
  expect_both_join(zero, one);
  std::thread faster([&] {
    zero.store.reset();
    zero = connect_to_job_store(0);
  });
  one.store.reset();
  one = connect_to_job_store(1);
  faster.join();
  expect_both_join(zero, one);
  one.store.reset();
}

TEST_P(GroupsThatFollow, AGroupThatIsMadeWhileAnotherLivesHasTheSameStoreAndKeysOfItsOwn) {
  Meeting zero = connect_to_job_store(0);
  Meeting one = connect_to_job_store(1);
  expect_both_join(zero, one);
  Meeting second_zero = connect_to_job_store(0);
  Meeting second_one = connect_to_job_store(1);
  EXPECT_EQ(second_zero.address, zero.address);
  EXPECT_EQ(second_one.address, one.address);
  expect_both_join(second_zero, second_one);
  // It outlives the first.
  one.store.reset();
  zero.store.reset();
  second_one.store->set("k", "v");
  EXPECT_EQ(second_zero.store->get("k", soon()), "v");
  second_one.store.reset();
}

TEST_P(GroupsThatFollow, TheEndpointLeadsToTheSameStore) {
  const Meeting zero = connect_to_job_store(0);
  Meeting one = connect_to_job_store(1);
  zero.store->set("k", "v");
  for (const Meeting* meeting : {&zero, static_cast<const Meeting*>(&one)}) {
    ASSERT_TRUE(meeting->endpoint);
    EXPECT_EQ(store::TcpStore(*meeting->endpoint, soon()).get("k", soon()), "v");
    EXPECT_EQ(meeting->endpoint->secret.has_value(), GetParam() != RendezvousMethod::address)
        << "nothing told it there";
  }
  EXPECT_EQ(one.endpoint->role, "rank 1");
  one.store.reset();
}

INSTANTIATE_TEST_SUITE_P(RendezvousMethod, GroupsThatFollow,
                         ::testing::Values(RendezvousMethod::address, RendezvousMethod::local_socket,
                                           RendezvousMethod::file, RendezvousMethod::agent_store),
                         [](const auto& one) { return name_of(one.param); });

// So long that a wait which is not ended by what it waits for runs into the test's own limit.
constexpr std::chrono::hours kForGood{1};

bool somebody_listens_at(const net::HostPort& address) {
  try {
    net::tcp_connect_once(address, soon());
    return true;
  } catch (const SystemError&) {
    return false;
  }
}

TEST(MeetingEnd, RankZeroWaitsForTheOthersToLeave) {
  MeetingPlan plan = at({"127.0.0.1", free_port()});
  plan.leave_timeout = kForGood;
  Meeting zero = meet(plan, rank_of(0, 2), soon());
  Meeting one = meet(plan, rank_of(1, 2), soon());
  std::thread leaves([&] { zero.store.reset(); });
  // Rank 0 takes its address away first, and then waits.
  const Deadline patience = soon();
  while (somebody_listens_at(plan.address) && !patience.expired()) std::this_thread::yield();
  EXPECT_FALSE(patience.expired()) << "rank 0's address is still open";
  for (int i = 0; i < 1000; ++i) one.store->add("last use", 1);
  EXPECT_EQ(one.store->get("last use", soon()), "1000");
  one.store.reset();
  leaves.join();
}

// One that stopped answering is waited for until its membership finds it silent.
TEST(MeetingEnd, ARankThatDiedOrStoppedAnsweringIsNotWaitedFor) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    MeetingPlan plan = at({"127.0.0.1", free_port()});
    plan.leave_timeout = kForGood;
    const Child one([&](const Line& line) {
      const Meeting meeting = meet(plan, rank_of(1, 2), soon());
      const membership::MemberLink link(
          *meeting.endpoint, "job", {.rank = 1, .world_size = 2, .process = membership::ProcessInfo::of_this_process()},
          {}, {}, soon());
      return line.tell('r') ? Child::stay() : 1;
    });
    Meeting zero = meet(plan, rank_of(0, 2), soon());
    ASSERT_EQ(one.told<char>(), 'r');
    ASSERT_EQ(::kill(one.pid(), signal), 0);
    zero.store.reset();
  }
}

}  // namespace
}  // namespace lockstep::rendezvous::meet_groups_test
