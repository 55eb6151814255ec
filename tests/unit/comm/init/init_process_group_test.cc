// SPDX-License-Identifier: Apache-2.0
// From variables and arguments to a working group, ranks as threads; what ends a start, and a process that does not
// catch. A rank that dies on its way into the group: wherever it has come to, the others are told at once and by name,
// or it has left no trace and may be started again. It is a process of its own, which ends itself with SIGKILL at a
// step of its join().
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <barrier>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/intra_op_threads.h"
#include "lockstep/comm/init/init_process_group.h"
#include "lockstep/job/cause.h"
#include "runtime/base/cpu.h"
#include "runtime/base/mutex.h"
#include "runtime/comm/init/uncaught.h"
#include "runtime/job/exit_code.h"
#include "runtime/membership/member_link.h"
#include "runtime/membership/membership_server.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/rendezvous/join.h"
#include "runtime/rendezvous/meeting/owned_store.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/server/tcp_store_server.h"
#include "tests/support/error_of.h"
#include "tests/support/on_threads.h"

namespace lockstep::init_process_group_test {
namespace {

using lockstep::testing::expect_text;
using namespace std::chrono_literals;

// This process's variables are the tests' own: whatever launcher runs them is not meant.
class InitProcessGroup : public ::testing::Test {
 protected:
  InitProcessGroup() {
    const Environment environment = Environment::of_process();
    for (const auto& [name, value] : environment.variables()) {
      for (const char* prefix : {"LOCKSTEP_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "TORCHELASTIC_"}) {
        if (name.starts_with(prefix) && name != "LOCKSTEP_LOG_LEVEL") ::unsetenv(name.c_str());
      }
    }
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
                             "MASTER_PORT", "OMP_NUM_THREADS"}) {
      ::unsetenv(name);
    }
  }

  // Each rank as a thread, with a group of its own.
  template <typename OnRank>
  static void on_ranks(int size, const std::string& backend, OnRank on_rank) {
    const std::string url = "tcp://" + net::local_address(net::tcp_listen({"127.0.0.1", 0}).get()).to_string() +
                            "?world_size=" + std::to_string(size) + "&rank=";
    lockstep::testing::on_threads(size, [&](int rank) {
      on_rank(init_process_group({.backend = backend, .init_method = url + std::to_string(rank), .timeout = 30s}),
              rank);
    });
  }
  static void expect_sum(ProcessGroup& group) {
    float value = static_cast<float>(group.rank() + 1);
    group.all_reduce({&value, 1, DType::f32, group.device()}).wait();
    EXPECT_EQ(value, static_cast<float>(group.size() * (group.size() + 1) / 2));
  }
};

TEST_F(InitProcessGroup, AloneWithoutVariables) {
  const auto group = init_process_group();
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(group->backend(), "single");
  EXPECT_EQ(group->timeout(), 5min);
  EXPECT_EQ(intra_op_threads(), allowed_cores());
  expect_sum(*group);
}

TEST_F(InitProcessGroup, ThePytorchWayWithAWorldOfOne) {
  const auto group = init_process_group(
      {.init_method = "tcp://localhost:23456", .rank = 0, .world_size = 1, .timeout = 30s, .device = "cpu"});
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(group->timeout(), 30s);
}

TEST_F(InitProcessGroup, FourRanksOverTcp) {
  on_ranks(4, "auto", [](const std::shared_ptr<ProcessGroup>& group, int rank) {
    EXPECT_EQ(group->rank(), rank);
    EXPECT_EQ(group->size(), 4);
    EXPECT_EQ(group->backend(), "shm");
    EXPECT_EQ(group->roster()[3].local_rank, 3);
    expect_sum(*group);
  });
  EXPECT_EQ(intra_op_threads(), std::max(1, allowed_cores() / 4));
}

TEST_F(InitProcessGroup, WhatIsWrongIsSaidBeforeAnybodyIsWaitedFor) {
  const auto refusal = [](const InitOptions& options) -> std::string {
    try {
      init_process_group(options);
      return "accepted";
    } catch (const Error& error) {
      return error.what();
    }
  };
  expect_text(refusal({.backend = "ucc"}), {"'ucc'", "single, shm"});
  expect_text(refusal({.device = "cuda:3"}), {"device 'cuda:3' was asked for: "});
  expect_text(refusal({.backend = "nccl", .init_method = "tcp://127.0.0.1:9?rank=1&world_size=2"}), {"'nccl'"});
  expect_text(refusal({.init_method = "tcp://nowhere"}), {"no port"});
  expect_text(refusal({.rank = 2, .world_size = 2}), {"rank=2"});
  expect_text(refusal({.rank = 1, .world_size = 2}), {"MASTER_ADDR and MASTER_PORT are not set"});
  ::setenv("RANK", "1", 1);
  expect_text(refusal({}), {"WORLD_SIZE is not"});
  ::setenv("WORLD_SIZE", "2", 1);
  expect_text(refusal({}), {"MASTER_ADDR and MASTER_PORT are not set"});
}

// What the store's host hears of it, once: an exception that follows a report is its consequence.
TEST_F(InitProcessGroup, RanksThatDisagreeBlameNobody) {
  Mutex mutex;
  std::vector<Cause> reported;
  const store::TcpStoreServer server({.extension = std::make_shared<membership::MembershipServer>(
                                          membership::MembershipOptions{}, [&](const membership::MemberNews& news) {
                                            MutexLock lock(mutex);
                                            if (news.cause) reported.push_back(*news.cause);
                                          })});
  const net::HostPort address = server.address();
  store::TcpStore(address, Deadline::after(60s)).set(rendezvous::kTokenKey, "of the test");
  lockstep::testing::on_threads(2, [&](int thread) {
    const std::string url = "tcp://" + address.to_string() + "?rank=" + std::to_string(thread + 1) +
                            "&world_size=" + std::to_string(thread + 3);
    expect_text(lockstep::testing::outcome_of([&] { init_process_group({.init_method = url, .timeout = 60s}); }),
                {"Mismatch: ", "ranks disagree on the world size"});
  });
  MutexLock lock(mutex);
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].kind, Cause::Kind::mismatch);
  EXPECT_EQ(reported[0].rank, -1);
}

// What a group reads of the environment later is what it was at the start: another thread of the program may be in
// setenv() by then, which moves what readers look at.
TEST_F(InitProcessGroup, TheEnvironmentIsReadAtTheStartAlone) {
  std::barrier started(2);
  on_ranks(2, "tcp", [&](const std::shared_ptr<ProcessGroup>& group, int rank) {
    started.arrive_and_wait();
    if (rank == 0) {
      ::setenv("GLOO_SOCKET_IFNAME", "no-such-interface", 1);
      ::setenv("LOCKSTEP_PORT_RANGE", "no-range", 1);
    }
    started.arrive_and_wait();
    expect_sum(*group->new_group({0, 1}));
  });
  ::unsetenv("GLOO_SOCKET_IFNAME");
  ::unsetenv("LOCKSTEP_PORT_RANGE");
}

TEST_F(InitProcessGroup, OmpNumThreadsDecidesIfItIsANumber) {
  for (const auto& [value, wanted] : {std::pair{"3", 3}, {"banana", allowed_cores()}}) {
    set_intra_op_threads(value[0] == '3' ? 3 : allowed_cores() + 1);
    ::setenv("OMP_NUM_THREADS", value, 1);
    const auto group = init_process_group();
    EXPECT_EQ(intra_op_threads(), wanted) << value;
  }
}

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
std::string start_outcome(int rank, const net::HostPort& address) {
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
    threads[rank] = std::thread([&, rank] { outcomes[static_cast<std::size_t>(rank)] = start_outcome(rank, address); });
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

class UncaughtDeathTest : public ::testing::Test {
 protected:
  // A fresh process per case: this one may have threads.
  UncaughtDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

void end_with(void (*body)(), int rank = -1) {
  install_uncaught_error_handler();
  install_uncaught_error_handler();  // twice is once
  if (rank >= 0) set_uncaught_error_rank(rank);
  std::thread(body).join();  // outside of the test framework's own try blocks
}

[[noreturn]] void throw_as_torch() {
  throw std::runtime_error(
      "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x6)\n"
      "Exception raised from meta at LinearAlgebra.cpp:94 (most recent call first):\nframe #0: c10::Error");
}
[[noreturn]] void throw_no_memory_of_rank_2() {
  throw make_error<BackendUnavailable>(
      Cause{.kind = Cause::Kind::failed, .rank = 2, .reporter = 2, .text = "no memory"});
}

struct Uncaught {
  void (*body)();
  int rank;
  int code;
  const char* line;
};

TEST_F(UncaughtDeathTest, AnErrorIsOneLineAndAnExitCode) {
  const Uncaught cases[] = {
      {[] { throw Mismatch("another model\nthan rank 0"); }, 3, 1,
       "^\\[lockstep rank 3\\] fatal: another model than rank 0\n$"},
      {[] { throw PeerLost("rank 2 was killed"); }, 3, kExitPeerLost,
       "^\\[lockstep rank 3\\] fatal: rank 2 was killed\n$"},
      // All ranks throw it together, and one of them has the cause.
      {throw_no_memory_of_rank_2, 3, kExitPeerLost, "fatal: no memory\n$"},
      {throw_no_memory_of_rank_2, 2, 1, "fatal: no memory\n$"},
      {[] { throw InvalidArgument("RANK=4"); }, -1, 1, "^\\[lockstep\\] fatal: RANK=4\n$"},
      {[] { throw std::bad_alloc(); }, 3, 1,
       "^\\[lockstep rank 3\\] fatal: out of memory: an allocation failed .*; raise the limit[^\n]*\n$"},
      {[] { throw CorruptData("tensor '\033[2J'"); }, -1, 1, "^\\[lockstep\\] fatal: tensor '\\?\\[2J'\n$"},
      {throw_as_torch, 3, 1,
       "^\\[lockstep rank 3\\] fatal: mat1 and mat2 shapes cannot be multiplied \\(2x3 and 4x6\\)\n$"}};
  for (const Uncaught& one : cases) {
    EXPECT_EXIT(end_with(one.body, one.rank), ::testing::ExitedWithCode(one.code), one.line);
  }
}

TEST_F(UncaughtDeathTest, OtherExceptionsAndBacktracesThatAreAskedForEndAsTheyWouldWithoutUs) {
  EXPECT_EXIT(end_with([] { throw std::logic_error("the program's own"); }), ::testing::KilledBySignal(SIGABRT),
              "the program's own");
  const auto ask_and_throw = [] {
    ::setenv("TORCH_SHOW_CPP_STACKTRACES", "1", 1);
    throw_as_torch();
  };
  EXPECT_EXIT(end_with(ask_and_throw), ::testing::KilledBySignal(SIGABRT), "frame #0: c10::Error");
}

}  // namespace
}  // namespace lockstep::init_process_group_test
