// SPDX-License-Identifier: Apache-2.0
// The run's secret: its ranks have it, nobody else sees it, and without it the store gives nothing.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/client/torch_store_client.h"
#include "tests/e2e/launch.h"
#include "tests/support/leftovers.h"

namespace lockstep::e2e::secret_test {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;
using testing::run;

constexpr auto* kSecret = "LOCKSTEP_STORE_SECRET";

Deadline patience() { return Deadline::after(testing::kPatience); }

// A job of two ranks that have joined and go on when they get SIGUSR1.
class Secret : public ::testing::Test {
 protected:
  static Words job(const Words& flags = {}) {
    return run_command(joined({"-n", "2"}, flags), RANK_PROGRAM, {"init", "sum", "ready", "wait-signal:10", "sum"});
  }
  Process start(Variables variables = {}) {
    Process launcher({.command = job(), .environment = std::move(variables)});
    EXPECT_TRUE(launcher.await_output("ready", 2));
    return launcher;
  }
  // Of the ranks that run: the values of a variable they were started with.
  static std::multiset<std::string> of_ranks(const std::string& name) {
    std::multiset<std::string> values;
    const auto ranks = testing::live_ranks();
    for (const auto& process : testing::processes_with("LOCKSTEP_TEST_JOB", testing::job())) {
      const bool is_rank =
          std::any_of(ranks.begin(), ranks.end(), [&](auto& rank) { return rank.second == process.pid; });
      if (const auto found = process.environment.find(name); is_rank && found != process.environment.end()) {
        values.insert(found->second);
      }
    }
    return values;
  }
  static std::string of_rank(const std::string& name) {
    const auto values = of_ranks(name);
    return values.empty() ? std::string() : *values.begin();
  }
  static store::Endpoint endpoint() {
    return {.address = net::parse_host_port(of_rank("LOCKSTEP_STORE")),
            .secret = store::Secret::parse(of_rank(kSecret)),
            .run_id = of_rank("LOCKSTEP_RUN_ID"),
            .role = "rank 0"};
  }
  // The error of who connects so.
  static std::string refusal(const store::Endpoint& endpoint) {
    try {
      store::TcpStore store(endpoint, patience());
      store.num_keys();
    } catch (const Error& error) {
      return error.what();
    }
    return "(served)";
  }
  // Lets the job go on, which must end well: nothing that happened to its store has hurt it.
  static Result finish(Process& launcher) {
    launcher.send(SIGUSR1);
    auto result = launcher.wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    for (const std::string rank : {"0", "1"}) {
      const auto line = "[rank " + rank + "] sum 3 of 2\n";
      EXPECT_TRUE(contains(result.out.substr(result.out.find("ready")), line)) << result.out;
    }
    return result;
  }
};

TEST_F(Secret, EveryRankHasItAndEachRunItsOwn) {
  std::set<std::string> seen;
  for (int i = 0; i < 2; ++i) {
    Process launcher = start();
    const auto values = of_ranks(kSecret);
    EXPECT_EQ(values.size(), 2u);
    EXPECT_EQ(values.count(of_rank(kSecret)), 2u) << "the ranks of a run share it";
    seen.insert(of_rank(kSecret));
    finish(launcher);
  }
  ASSERT_EQ(seen.size(), 2u);
  for (const auto& digits : seen) {
    EXPECT_EQ(digits.size(), 64u);
    EXPECT_EQ(digits.find_first_not_of("0123456789abcdef"), std::string::npos);
  }
}

TEST_F(Secret, IsOnNoCommandLineAndInNoOutput) {
  Process launcher = start({{"LOCKSTEP_LOG_LEVEL", "trace"}});
  const auto digits = of_rank(kSecret);
  ASSERT_EQ(digits.size(), 64u);
  int looked_at = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    looked_at += contains(text, "e2e_rank") ? 1 : 0;
    EXPECT_FALSE(contains(text, digits)) << entry.path();
  }
  EXPECT_GE(looked_at, 3) << "the launcher's and the ranks' are among them";
  EXPECT_NE(refusal({.address = endpoint().address, .secret = store::Secret::random(), .role = "stranger"}),
            "(served)");
  const auto result = finish(launcher);
  EXPECT_FALSE(contains(result.out + result.err, digits));
}

TEST_F(Secret, OfAnOuterJobIsNotPassedOn) {
  Process launcher = start({{kSecret, std::string(64, 'a')}, {"LOCKSTEP_STORE_SECRET_FILE", "/no/such/file"}});
  EXPECT_NE(of_rank(kSecret), std::string(64, 'a'));
  EXPECT_TRUE(of_ranks("LOCKSTEP_STORE_SECRET_FILE").empty());
  finish(launcher);
}

TEST_F(Secret, WhoHasItIsServed) {
  Process launcher = start();
  store::TcpStore store(endpoint(), patience());
  store.set("test/key", "value");
  EXPECT_EQ(store.get("test/key", patience()), "value");
  finish(launcher);
}

TEST_F(Secret, WithoutTheRightOneTheStoreGivesNothing) {
  Process launcher = start();
  auto wrong = endpoint();
  wrong.secret = store::Secret::random();
  wrong.role = "rank 1";
  EXPECT_NE(refusal(wrong), "(served)");
  ASSERT_TRUE(launcher.await_output("lockstep run: warning: store server at ")) << "the launcher's console shows it";
  auto none = endpoint();
  none.secret.reset();
  EXPECT_TRUE(contains(refusal(none), kSecret)) << refusal(none);
  finish(launcher);
}

TEST_F(Secret, ARankWithAnotherOneEndsWithOneLine) {
  Process launcher = start();
  const auto stranger = run({RANK_PROGRAM, "init"}, {{"LOCKSTEP_STORE", of_rank("LOCKSTEP_STORE")},
                                                     {"LOCKSTEP_RUN_ID", of_rank("LOCKSTEP_RUN_ID")},
                                                     {kSecret, std::string(64, 'a')},
                                                     {"RANK", "1"},
                                                     {"WORLD_SIZE", "2"},
                                                     {"LOCKSTEP_TIMEOUT", "20"}});
  EXPECT_EQ(stranger.exit_code, 1);
  EXPECT_TRUE(contains(stranger.err, "fatal: ")) << stranger.err;
  EXPECT_TRUE(contains(stranger.err, of_rank("LOCKSTEP_STORE"))) << stranger.err;
  finish(launcher);
}

TEST_F(Secret, ATorchClientIsClosedAndTheLauncherSaysWhatToUse) {
  Process launcher = start();
  const std::string validate_and_ping = "\x00\xce\xf7\x85\x3c\x0d\x01\x02\x03\x04"s;  // today's torch
  const std::string set_and_get = "\x00\x02\0\0\0\0\0\0\0/k\x01\0\0\0\0\0\0\0v"s;     // SET of 1.13
  for (const auto& greeting : {validate_and_ping, set_and_get}) {
    const auto client = net::tcp_connect(endpoint().address, patience());
    const auto from = net::local_address(client.get()).to_string();
    net::send_all(client.get(), greeting, patience());
    std::byte answer{};
    EXPECT_THROW(net::recv_some(client.get(), {&answer, 1}, patience()), net::ConnectionClosed);
    ASSERT_TRUE(launcher.await_output(from)) << "by its address";
  }
  const auto result = finish(launcher);
  int refusals = 0;
  for (const auto& line : lines_of(result.err)) {
    if (!contains(line, "torch client refused: use --torch-store")) continue;
    EXPECT_TRUE(line.starts_with("lockstep run: warning: store server at ")) << line;
    ++refusals;
  }
  EXPECT_EQ(refusals, 2) << result.err;
}

TEST_F(Secret, GarbageIsLoggedByTheLauncherAndHurtsNobody) {
  Process launcher = start();
  const auto client = net::tcp_connect(endpoint().address, patience());
  net::send_all(client.get(), std::string(4096, '\x7f'), patience());
  ASSERT_TRUE(launcher.await_output("lockstep run: warning: store server at "));
  finish(launcher);
}

TEST_F(Secret, GoesBesideAnOpenTorchStore) {
  Process launcher({.command = job({"--torch-store"})});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  auto wrong = endpoint();
  wrong.secret = store::Secret::random();
  EXPECT_NE(refusal(wrong), "(served)") << "the run's own store is not opened by it";
  store::TorchStoreClient torch({"127.0.0.1", static_cast<std::uint16_t>(std::stoi(of_rank("MASTER_PORT")))},
                                patience());
  torch.set("key", "value");
  EXPECT_EQ(torch.get("key", patience()), "value");
  EXPECT_EQ(torch.num_keys(), 1) << "and shares nothing with it";
  finish(launcher);
}

}  // namespace
}  // namespace lockstep::e2e::secret_test
