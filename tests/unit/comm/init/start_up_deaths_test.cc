// SPDX-License-Identifier: Apache-2.0
// A rank that dies on its way into the group: wherever it has come to, the others are told at once and by name, or it
// has left no trace and may be started again.
//
// The one that dies is a process of its own, which ends itself with SIGKILL at a given step of its join(). The others
// are threads here, in init_process_group. A limit here is that of a test that hangs.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <map>
#include <optional>
#include <thread>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/comm/init/init_process_group.h"
#include "runtime/membership/member_link.h"
#include "runtime/membership/membership_server.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/rendezvous/join.h"
#include "runtime/rendezvous/meeting/owned_store.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/server/tcp_store_server.h"
#include "tests/support/error_of.h"

namespace lockstep::start_up_deaths_test {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::expect_text;

constexpr int kRanks = 3;

// The steps of join(), in order.
enum class Step { registers, claims, is_counted, reads_the_verdict };

std::string name_of(const ::testing::TestParamInfo<std::tuple<int, Step>>& info) {
  const char* const names[] = {"BeforeItRegisters", "BeforeItsClaim", "BeforeItIsCounted", "BeforeItReadsTheVerdict"};
  return "Rank" + std::to_string(std::get<0>(info.param)) + names[static_cast<int>(std::get<1>(info.param))];
}

[[noreturn]] void die() {
  ::kill(::getpid(), SIGKILL);
  ::_exit(1);
}

// Of a rank that dies just before a step of its join().
class DyingStore : public store::TcpStore {
 public:
  DyingStore(const store::Endpoint& endpoint, Step last, const std::string& claim)
      : TcpStore(endpoint, Deadline::after(60s)), last_(last), claim_(claim) {}
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override {
    const bool is_the_claim = key.ends_with(claim_) && expected.empty();
    if (last_ == Step::claims && is_the_claim) die();
    return TcpStore::compare_set(key, expected, desired);
  }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    if (last_ == Step::is_counted) die();
    return TcpStore::add(key, delta);
  }
  std::string get(std::string_view key, const Deadline& deadline) override {
    if (last_ == Step::reads_the_verdict && key.ends_with("/verdict")) die();
    return TcpStore::get(key, deadline);
  }

 private:
  const Step last_;
  const std::string claim_;
};

// A whole life, which ends when the others are waiting for it. As rank 0 it hosts the store.
void live_until(Step last, int rank, const net::HostPort& address) {
  rendezvous::Identity identity;
  identity.rank = rank;
  identity.world_size = kRanks;
  std::optional<store::TcpStoreServer> server;
  if (rank == 0) {
    server.emplace(
        store::TcpStoreServerOptions{.listen = address, .extension = std::make_shared<membership::MembershipServer>()});
    store::TcpStore(address, Deadline::after(60s)).set(rendezvous::kTokenKey, std::to_string(::getpid()));
  }
  const store::Endpoint endpoint{.address = address};
  DyingStore store(endpoint, last, "/rank/" + std::to_string(rank));
  // Who comes to the store after the others have failed finds nobody there, and waits for whom it can't know of.
  std::vector<std::string> others;
  for (int other = 0; other < kRanks; ++other) {
    if (other != rank) others.push_back("rendezvous/-/0/0/rank/" + std::to_string(other));
  }
  store.wait(others, Deadline::after(60s));
  std::optional<membership::MemberLink> link;
  rendezvous::join(
      store, identity, rendezvous::self_member(identity), Deadline::after(60s), [&](const std::string& scope) {
        if (last == Step::registers) die();
        link.emplace(endpoint, scope,
                     membership::MemberInfo{
                         .rank = rank, .world_size = kRanks, .process = membership::ProcessInfo::of_this_process()},
                     membership::LivenessOptions{}, membership::MemberCalls{}, Deadline::after(60s));
      });
}

// What init_process_group throws, or "a group".
std::string outcome_of(int rank, const net::HostPort& address) {
  const std::string url = "tcp://" + address.to_string() + "?world_size=3&rank=" + std::to_string(rank);
  return lockstep::testing::outcome_of([&] {
    const auto group = init_process_group({.init_method = url, .timeout = 60s});
    group->barrier().wait();
  });
}

class RankThatDies : public ::testing::TestWithParam<std::tuple<int, Step>> {};

TEST_P(RankThatDies, IsNamedToTheOthersOrMayBeStartedAgain) {
  const auto [dying, last] = GetParam();
  const net::HostPort address = net::local_address(net::tcp_listen({"127.0.0.1", 0}).get());
  // Before there is a thread.
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    try {
      live_until(last, dying, address);
      std::fputs("it has lived on\n", stderr);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "it failed before it died: %s\n", error.what());
    }
    ::_exit(1);
  }
  std::array<std::string, kRanks> outcomes;
  std::map<int, std::thread> threads;
  const auto start = [&](int rank) {
    threads[rank] = std::thread([&, rank] { outcomes[static_cast<std::size_t>(rank)] = outcome_of(rank, address); });
  };
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank != dying) start(rank);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status)) << "exit code " << WEXITSTATUS(status);
  const bool has_left_no_trace = dying != 0 && last == Step::registers;
  if (has_left_no_trace) start(dying);
  for (auto& [rank, thread] : threads) thread.join();
  for (const auto& [rank, thread] : threads) {
    const std::string& outcome = outcomes[static_cast<std::size_t>(rank)];
    if (has_left_no_trace) {
      EXPECT_EQ(outcome, "nothing") << "rank " << rank;
      continue;
    }
    expect_text(outcome, {"PeerLost: ", "rank " + std::to_string(dying) + " (host ", std::to_string(pid)});
    if (dying == 0) expect_text(outcome, {"which hosts the store at " + address.to_string()});
  }
}

INSTANTIATE_TEST_SUITE_P(AtStart, RankThatDies,
                         ::testing::Combine(::testing::Values(0, 1),
                                            ::testing::Values(Step::registers, Step::claims, Step::is_counted,
                                                              Step::reads_the_verdict)),
                         name_of);

}  // namespace
}  // namespace lockstep::start_up_deaths_test
