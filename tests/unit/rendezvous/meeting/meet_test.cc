// SPDX-License-Identifier: Apache-2.0
// Ranks as threads that meet through real stores: whom they find, and what they are told when they don't.
#include "runtime/rendezvous/meeting/meet.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/host.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/interfaces.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/rendezvous/join.h"
#include "runtime/rendezvous/meeting/file_meeting.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/server/tcp_store_server.h"
#include "tests/support/accept_one.h"
#include "tests/support/error_of.h"
#include "tests/unit/rendezvous/meeting/meeting_ranks.h"

namespace lockstep::rendezvous::meet_test {
namespace {

using lockstep::testing::accept_one;
using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using namespace std::chrono_literals;

struct Rank {
  std::optional<Joined> joined;
  std::string address;
  std::string error;
};

// Runs each of `ranks` in a thread: meet, join, leave.
std::vector<Rank> run(const MeetingPlan& plan, const std::vector<Identity>& ranks,
                      std::chrono::nanoseconds limit = 20s) {
  std::vector<Rank> results(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        Identity identity = ranks[i];
        const Deadline deadline = Deadline::after(limit);
        const Meeting meeting = meet(plan, identity, deadline);
        results[i].address = meeting.address;
        results[i].joined = join(*meeting.store, identity, self_member(identity), deadline);
      } catch (const Error& error) {
        results[i].error = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

void expect_all_met(const std::vector<Rank>& results) {
  for (const Rank& result : results) {
    ASSERT_TRUE(result.joined) << result.error;
    EXPECT_EQ(result.joined->roster.size(), results.size());
  }
}

template <typename E>
std::string refusal(const MeetingPlan& plan, const Identity& identity, std::chrono::nanoseconds limit = 20s) {
  return error_of<E>([&] { meet(plan, identity, Deadline::after(limit)); });
}

TEST(Meet, AloneIsInProcess) {
  const Meeting meeting = meet(plan_meeting({}, {}), {}, soon());
  EXPECT_EQ(meeting.address, "in-process");
  meeting.store->set("k", "v");
  EXPECT_EQ(meeting.store->get("k", soon()), "v");
}

// By every method, with a secret that all were given and without.
class MeetBy : public ::testing::TestWithParam<std::tuple<RendezvousMethod, bool>> {};
INSTANTIATE_TEST_SUITE_P(
    RendezvousMethod, MeetBy,
    ::testing::Combine(::testing::Values(RendezvousMethod::address, RendezvousMethod::launcher_store,
                                         RendezvousMethod::local_socket, RendezvousMethod::file,
                                         RendezvousMethod::agent_store),
                       ::testing::Bool()),
    [](const auto& one) { return name_of(std::get<0>(one.param)) + (std::get<1>(one.param) ? "_with_secret" : ""); });

TEST_P(MeetBy, RanksMeetInAnyOrderAndAgain) {
  const auto [method, has_secret] = GetParam();
  const Place place(method, has_secret ? std::optional(store::Secret::random()) : std::nullopt);
  expect_all_met(run(place.plan, {rank_of(2, 3), rank_of(1, 3), rank_of(0, 3)}));
  const auto again = run(place.plan, {rank_of(0, 3), rank_of(1, 3), rank_of(2, 3)});
  expect_all_met(again);
  EXPECT_TRUE(std::filesystem::is_empty(place.folder));
  if (method != RendezvousMethod::agent_store) return;
  EXPECT_NE(again[0].address, place.plan.address.to_string()) << "rank 0's own";
  EXPECT_EQ(store::TcpStore(place.plan.address, soon()).num_keys(), 0) << "rank 0 has taken back what it said";
}

// That two ranks have met at one store.
void expect_one_store(const MeetingPlan& plan, Meeting& zero) {
  const Meeting one = meet(plan, rank_of(1, 2), soon());
  one.store->set("k", "v");
  EXPECT_EQ(zero.store->get("k", soon()), "v");
}

MeetingPlan with_secret(MeetingPlan plan) {
  plan.secret = store::Secret::random();
  return plan;
}

TEST(Meet, AnotherSecretOrNoneGetsNothingAndTheOthersMeet) {
  const MeetingPlan open = at({"127.0.0.1", free_port()});
  const MeetingPlan plan = with_secret(open);
  Meeting zero = meet(plan, rank_of(0, 2), soon());
  for (const MeetingPlan& stranger : {with_secret(open), open}) {
    expect_text(refusal<StoreError>(stranger, rank_of(1, 2)), {"LOCKSTEP_STORE_SECRET"});
  }
  expect_one_store(plan, zero);
  // Nor is who was first at the port believed, if it asks for no secret.
  const store::TcpStoreServer somebody_elses;
  expect_text(refusal<StoreError>(with_secret(at(somebody_elses.address())), rank_of(1, 2), 2s), {"secret"});
}

TEST(Meet, UnderTorchrunASecretThatWasGivenIsUsedAndNotPublished) {
  const store::TcpStoreServer agent;
  const MeetingPlan open = at(agent.address(), RendezvousMethod::agent_store);
  const MeetingPlan plan = with_secret(open);
  Meeting zero = meet(plan, rank_of(0, 2), soon());
  store::TcpStore visitor(agent.address(), soon());
  std::string published;
  for (const std::string& key : visitor.list_keys()) published += visitor.get(key, soon()) + "\n";
  expect_text(published, {zero.address});
  EXPECT_EQ(published.find(plan.secret->hex()), std::string::npos);
  ASSERT_TRUE(zero.endpoint && zero.endpoint->secret);
  EXPECT_TRUE(*zero.endpoint->secret == *plan.secret);
  expect_text(refusal<Mismatch>(open, rank_of(1, 2)), {"rank 1/2 was not given a secret", "was given one"});
  expect_text(refusal<Timeout>(with_secret(open), rank_of(1, 2), 2s), {"LOCKSTEP_STORE_SECRET"});
  expect_one_store(plan, zero);
}

TEST(Meet, ARankZeroThatTellsItsOwnSecretIsNotBelievedByWhoWasGivenOne) {
  const Place place(RendezvousMethod::agent_store);
  const Meeting zero = meet(place.plan, rank_of(0, 2), soon());
  expect_text(refusal<Mismatch>(with_secret(place.plan), rank_of(1, 2)), {"rank 1/2 was given a secret"});
}

// "127.257" is a name of 127.0.1.1, as a Debian host's own is in its /etc/hosts.
constexpr const char* kDebianName = "127.257";

// Rank `rank` of two, which its launcher says are on two hosts.
Identity rank_of_two_hosts(int rank) {
  Identity identity = rank_of(rank, 2);
  identity.local_world_size_known = true;
  return identity;
}

bool has_outward_interface() {
  const auto interfaces = net::interfaces_of_this_host();
  return std::any_of(interfaces.begin(), interfaces.end(), [](const auto& one) { return !one.loopback; });
}

TEST(Meet, UnderTorchrunOfSeveralHostsTheStoreIsWhereOtherHostsReachIt) {
  if (!has_outward_interface()) GTEST_SKIP() << "this host has no interface but loopback";
  const store::TcpStoreServer agent({.listen = {"", 0}});
  const MeetingPlan plan = at({kDebianName, agent.address().port}, RendezvousMethod::agent_store);
  const auto hosts = run(plan, {rank_of_two_hosts(1), rank_of_two_hosts(0)});
  expect_all_met(hosts);
  EXPECT_FALSE(net::is_loopback(net::parse_host_port(hosts[0].address))) << hosts[0].address;
  const auto one_host = run(plan, {rank_of(1, 2), rank_of(0, 2)});
  expect_all_met(one_host);
  EXPECT_TRUE(net::is_loopback(net::parse_host_port(one_host[0].address))) << one_host[0].address;
}

// Rank 1 tries from the beginning: it must never find a store that is thrown away again.
TEST(Meet, AtADebianNameTheStoreListensOnceAndOnEveryAddress) {
  for (int round = 0; round < 20; ++round) {
    const MeetingPlan plan = at({kDebianName, free_port()});
    const auto results = run(plan, {rank_of_two_hosts(1), rank_of_two_hosts(0)});
    expect_all_met(results);
    EXPECT_EQ(results[1].address, plan.address.to_string());
  }
  const MeetingPlan plan = at({kDebianName, free_port()});
  ::testing::internal::CaptureStderr();
  const Meeting zero = meet(plan, rank_of_two_hosts(0), soon());
  expect_text(::testing::internal::GetCapturedStderr(), {"is 127.0.1.1 on this host", "on every address"});
  // 127.0.0.1 stands for the addresses that other hosts come to.
  EXPECT_TRUE(net::tcp_connect_once({"127.0.0.1", plan.address.port}, soon()));
}

TEST(Meet, OfUnknownHostsTheStoreListensOnEveryAddressOnlyWithASecret) {
  const MeetingPlan plan = at({kDebianName, free_port()});
  ::testing::internal::CaptureStderr();
  {
    const Meeting zero = meet(plan, rank_of(0, 2), soon());
    EXPECT_THROW(net::tcp_connect_once({"127.0.0.1", plan.address.port}, soon()), SystemError);
  }
  expect_text(::testing::internal::GetCapturedStderr(), {"is 127.0.1.1 on this host", "for ranks of this host only"});
  const MeetingPlan closed = with_secret(at({kDebianName, free_port()}));
  expect_all_met(run(closed, {rank_of(1, 2), rank_of(0, 2)}));
  const Meeting zero = meet(closed, rank_of(0, 2), soon());
  EXPECT_TRUE(net::tcp_connect_once({"127.0.0.1", closed.address.port}, soon()));
}

TEST(Meet, WhoSaysLocalhostInAnyCaseMeansIt) {
  const MeetingPlan plan = with_secret(at({"LocalHost", free_port()}));
  ::testing::internal::CaptureStderr();
  const Meeting zero = meet(plan, rank_of(0, 2), soon());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_THROW(net::tcp_connect_once({"127.0.1.1", plan.address.port}, soon()), SystemError);
}

TEST(Meet, RankZerosNameThatNeverComesIsATimeoutWithTheRemedy) {
  expect_text(refusal<Timeout>(at({"no-such-host.invalid", 29500}), rank_of(0, 2), 50ms),
              {"rank 0/2 must host the store at no-such-host.invalid:29500", "of 0.05 s", "is not known on this host",
               "give an address of this one"});
}

TEST(Meet, RankZeroThatDoesNotComeIsSaidWithAddressTimeAndRemedy) {
  const Place agent(RendezvousMethod::agent_store);
  expect_text(refusal<Timeout>(agent.plan, rank_of(1, 2), 100ms),
              {"rank 0 has not come", agent.plan.address.to_string()});
  const net::HostPort address{"127.0.0.1", free_port()};
  expect_text(
      refusal<Timeout>(at(address), rank_of(1, 2), 50ms),
      {"rank 1/2", address.to_string(), "MASTER_ADDR and MASTER_PORT", "of 0.05 s", "rank 0 must run on that host"});
}

TEST(Meet, AnAddressWhereAnotherProgramAnswersIsSaid) {
  const UniqueFd other = net::tcp_listen({"127.0.0.1", 0});
  std::thread answers([&] {
    const UniqueFd client = accept_one(other.get(), soon());
    net::send_all(client.get(), "HTTP/1.1 400 Bad Request\r\n\r\n", soon());
    std::byte byte;
    while (net::wait_readable(client.get(), soon()) && ::read(client.get(), &byte, 1) > 0) {
    }
  });
  expect_text(refusal<StoreError>(at(net::local_address(other.get())), rank_of(1, 2)),
              {"rank 1/2 found no store", "MASTER_ADDR and MASTER_PORT"});
  answers.join();
}

TEST(Meet, AnAddressThatIsNotRankZerosListsThoseItHas) {
  // 192.0.2.0/24 is for documentation, but this machine may use it: 203.0.113.0/24 is another such network.
  expect_text(refusal<InvalidArgument>(at({"203.0.113.7", 29500}), rank_of(0, 2)),
              {"203.0.113.7:29500", "127.0.0.1", "start rank 0 on that host"});
}

TEST(Meet, TwoRankZerosAtOneAddressAreBothNamed) {
  const MeetingPlan plan = at({"127.0.0.1", free_port()});
  const Child first([&](const Line& line) {
    Identity zero = rank_of(0, 2);
    const Meeting meeting = meet(plan, zero, soon());
    std::thread waits([&] { join(*meeting.store, zero, self_member(zero), Deadline::never()); });
    meeting.store->get("rendezvous/-/0/0/rank/0", soon());
    line.tell('r');
    waits.join();
    return 0;
  });
  ASSERT_EQ(first.told<char>(), 'r');
  expect_text(refusal<Mismatch>(plan, rank_of(0, 2)),
              {"two processes are rank 0 of 2", "rank 0 (host " + host_name() + ", pid " + std::to_string(first.pid()),
               "pid " + std::to_string(::getpid())});
}

TEST(Meet, APortThatAnotherProgramHasIsNotMistakenForRankZero) {
  const UniqueFd other = net::tcp_listen({"127.0.0.1", 0});
  expect_text(refusal<InvalidArgument>(at(net::local_address(other.get())), rank_of(0, 2)),
              {"another program listens there", "choose a free port"});
}

class MeetAtFile : public ::testing::Test {
 protected:
  void write(const MeetingNote& note) { std::ofstream(place_.plan.path) << encode(note); }

  Place place_{RendezvousMethod::file};
};

TEST_F(MeetAtFile, ASecretThatWasGivenIsNotWritten) {
  const MeetingPlan plan = with_secret(place_.plan);
  const Meeting zero = meet(plan, rank_of(0, 2), soon());
  std::ifstream file(plan.path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  expect_text(text, {"secret given"});
  EXPECT_EQ(text.find(plan.secret->hex()), std::string::npos);
}

TEST_F(MeetAtFile, AFileThatRankZeroLeftByKillIsNotBelieved) {
  Child killed([](const Line&) { return 0; });
  ASSERT_EQ(killed.wait(), 0);
  // Its store's port is another store's now: only the process tells that the file is stale.
  const store::TcpStoreServer somebody_elses;
  MeetingNote note = note_of_this_process(somebody_elses.address(), "/0");
  note.pid = killed.pid();
  write(note);
  expect_text(refusal<Timeout>(place_.plan, rank_of(1, 2), 50ms), {"left behind by an earlier run"});
  expect_all_met(run(place_.plan, {rank_of(1, 2), rank_of(0, 2)}));
}

TEST_F(MeetAtFile, AStoreThatDoesNotKnowTheTokenIsNotBelieved) {
  MeetingNote note = note_of_this_process({}, "/0");
  const store::TcpStoreServer another({.secret = note.secret});
  store::TcpStore({.address = another.address(), .secret = note.secret, .role = "test"}, soon())
      .set("rendezvous/token", "other");
  note.address = another.address();
  write(note);
  const std::string said = refusal<Timeout>(place_.plan, rank_of(1, 2), 2s);
  EXPECT_TRUE(said.find("leads to no store") != said.npos || said.find("another run") != said.npos) << said;
}

TEST_F(MeetAtFile, ALoopbackStoreOfAnotherHostIsRefusedInOneSentence) {
  MeetingNote note = note_of_this_process({"127.0.0.1", 1}, "/0");
  note.boot_id = "another";
  note.host = "node7";
  write(note);
  expect_text(refusal<InvalidArgument>(place_.plan, rank_of(1, 2)),
              {"rank 0's store on host node7", "GLOO_SOCKET_IFNAME"});
}

}  // namespace
}  // namespace lockstep::rendezvous::meet_test
