// SPDX-License-Identifier: Apache-2.0
// The run's secret: its ranks have it, nobody else sees it, and without it the store gives nothing. And --torch-store,
// which opens a store without one for torch's clients: tests/compat has the real torch.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "runtime/net/tcp_socket.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/client/torch_store_client.h"
#include "tests/e2e/launch.h"
#include "tests/support/error_of.h"
#include "tests/support/leftovers.h"

namespace lockstep::e2e::secret_test {
namespace {

namespace fs = std::filesystem;
using lockstep::testing::expect_text;
using testing::run;

constexpr auto* kSecret = "LOCKSTEP_STORE_SECRET";

Deadline patience() { return Deadline::after(testing::kPatience); }

// A job of two ranks that have joined and go on when they get SIGUSR1.
class Secret : public ::testing::Test {
 protected:
  Process start(Variables variables = {}, const Words& flags = {}, const Words& actions = {}) {
    Process launcher(
        {.command = run_command(joined({"-n", "2"}, flags), RANK_PROGRAM,
                                joined(joined({"init", "sum"}, actions), {"ready", "wait-signal:10", "sum"})),
         .environment = std::move(variables)});
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
  // The error of who connects with another secret, or with none.
  static std::string refusal(const std::optional<store::Secret>& secret) {
    auto wrong = endpoint();
    wrong.secret = secret;
    return testing::error_of<Error>([&] { return store::TcpStore(wrong, patience()).num_keys(); });
  }
  // Lets the job go on, which must end well: nothing that happened to its store has hurt it.
  static Result finish(Process& launcher) {
    launcher.send(SIGUSR1);
    auto result = launcher.wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const auto after = result.out.substr(result.out.find("ready"));
    expect_text(after, {"[rank 0] sum 3 of 2\n", "[rank 1] sum 3 of 2\n"});
    return result;
  }
};

TEST_F(Secret, EveryRankHasItsRunsOwnWhichIsOnNoCommandLineAndInNoOutput) {
  std::set<std::string> seen = {std::string(64, 'a')};
  for (const Variables& outer :
       {Variables{}, Variables{{kSecret, std::string(64, 'a')}, {"LOCKSTEP_STORE_SECRET_FILE", "/no/such/file"}}}) {
    Variables variables = outer;
    variables["LOCKSTEP_LOG_LEVEL"] = "trace";
    Process launcher = start(variables);
    const auto digits = of_rank(kSecret);
    EXPECT_EQ(of_ranks(kSecret).count(digits), 2u) << "the ranks of a run share it";
    EXPECT_TRUE(of_ranks("LOCKSTEP_STORE_SECRET_FILE").empty());
    EXPECT_TRUE(seen.insert(digits).second) << "neither another run's nor an outer job's";
    ASSERT_EQ(digits.size(), 64u);
    EXPECT_EQ(digits.find_first_not_of("0123456789abcdef"), std::string::npos);
    int looked_at = 0;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string text = content(entry.path() / "cmdline");
      looked_at += contains(text, "e2e_rank") ? 1 : 0;
      EXPECT_FALSE(contains(text, digits)) << entry.path();
    }
    EXPECT_GE(looked_at, 3) << "the launcher's and the ranks' are among them";
    const auto result = finish(launcher);
    EXPECT_FALSE(contains(result.out + result.err, digits));
  }
}

TEST_F(Secret, WhoHasItIsServedAndNobodyElseWhoIsNamedByTheLauncher) {
  Process launcher = start();
  store::TcpStore store(endpoint(), patience());
  store.set("test/key", "value");
  EXPECT_EQ(store.get("test/key", patience()), "value");
  const std::string refused = refusal(store::Secret::random());
  EXPECT_NE(refused, "");
  EXPECT_FALSE(contains(refused, of_rank(kSecret)));
  ASSERT_TRUE(launcher.await_output("lockstep run: warning: store server at ")) << "the launcher's console shows it";
  expect_text(refusal(std::nullopt), {kSecret});
  finish(launcher);
}

TEST_F(Secret, GoesBesideAnOpenTorchStore) {
  testing::Footprint footprint;
  Process launcher =
      start({}, {"--torch-store"}, {"env:TORCHELASTIC_USE_AGENT_STORE", "env:TORCHELASTIC_RESTART_COUNT"});
  footprint.look();
  EXPECT_NE(refusal(store::Secret::random()), "") << "the run's own store is not opened by it";
  const std::string port = of_rank("MASTER_PORT");
  const net::HostPort address{"127.0.0.1", static_cast<std::uint16_t>(std::stoi(port))};
  store::TorchStoreClient torch(address, patience());
  torch.set("key", "value");
  EXPECT_EQ(store::TorchStoreClient(address, patience()).get("key", patience()), "value");
  EXPECT_EQ(torch.num_keys(), 1) << "and shares nothing with it";
  const auto result = finish(launcher);
  expect_text(result.out, {"[rank 1] TORCHELASTIC_USE_AGENT_STORE=True\n", "[rank 1] TORCHELASTIC_RESTART_COUNT=0\n"});
  expect_text(result.err,
              {"from lockstep run",  // the ranks' own store outranks the agent's
               "lockstep run: --torch-store: torch's protocol at 127.0.0.1:" + port + ", without a secret"});
  EXPECT_EQ(footprint.left_after(testing::leftover_deadline()), "");
}

TEST_F(Secret, WithoutATorchStoreNobodyListensAtMasterPort) {
  Process launcher = start();
  const auto port = static_cast<std::uint16_t>(std::stoi(of_rank("MASTER_PORT")));
  EXPECT_THROW(net::tcp_connect_once({"127.0.0.1", port}, patience()), SystemError);
  EXPECT_FALSE(contains(finish(launcher).err, "torch"));
}

TEST(TorchStore, TakesThePortItIsGivenOrSaysWhyNot) {
  const auto listener = net::tcp_listen({"127.0.0.1", 0});
  const auto port = std::to_string(net::local_address(listener.get()).port);
  const auto taken = run(plain(1, {"ready"}, {"--torch-store", "--master-port", port}));
  EXPECT_EQ(taken.exit_code, 1);
  expect_text(taken.err, {"Address already in use"});
  EXPECT_EQ(lines_of(taken.err).size(), 1u) << taken.err;
  const auto elsewhere = run(plain(1, {"ready"}, {"--torch-store", "--master-addr", "198.51.100.1"}));
  EXPECT_EQ(elsewhere.exit_code, 2);
  expect_text(elsewhere.err, {"--torch-store: listen at 198.51.100.1"});
  EXPECT_FALSE(contains(taken.out + elsewhere.out, "ready")) << "no rank was started";
}

}  // namespace
}  // namespace lockstep::e2e::secret_test
