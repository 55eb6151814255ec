// SPDX-License-Identifier: Apache-2.0
// `lockstep store serve`: its life, its line, its secret.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <utility>

#include "runtime/net/tcp_socket.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/client/torch_store_client.h"
#include "tests/e2e/launch.h"
#include "tests/support/leftovers.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::e2e::serve_test {
namespace {

namespace fs = std::filesystem;

Deadline patience() { return Deadline::after(testing::kPatience); }

Words serve(const Words& flags = {}) { return joined({LOCKSTEP_PROGRAM, "store", "serve"}, flags); }

// The word behind "NAME=" in the one line that it prints.
std::string told(const Process& server, const std::string& name) {
  std::smatch found;
  const auto text = server.out();
  return std::regex_search(text, found, std::regex(name + "=(\\S+)")) ? found[1].str() : std::string();
}

class Serve : public ::testing::Test {
 protected:
  ProcessOptions options(const Words& flags = {}, Variables variables = {}) const {
    variables["XDG_RUNTIME_DIR"] = folder_;
    return {.command = serve(flags), .environment = variables};
  }
  Process serving(const Words& flags = {}, Variables variables = {}) const {
    Process server(options(flags, std::move(variables)));
    EXPECT_TRUE(server.await_output("LOCKSTEP_STORE="));
    return server;
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path());
    return names;
  }

  const testing::TemporaryFolder folder_;
};

TEST_F(Serve, ServesUntilASignalAndLeavesNothing) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    testing::Footprint footprint;
    Process server = serving();
    EXPECT_TRUE(server.out().starts_with("lockstep store: serves at 127.0.0.1:"));
    footprint.look();
    EXPECT_EQ(footprint.sockets().size(), 1u);
    server.send(signal);
    const auto result = server.wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(lines_of(result.out).size(), 1u) << result.out;
    EXPECT_EQ(files(), Words{}) << "the secret's file goes with the server";
    EXPECT_EQ(footprint.left_after(testing::leftover_deadline()), "");
  }
}

TEST_F(Serve, DrawsASecretIntoAFileOfThisUsersOnly) {
  const Process first = serving();
  const Process second = serving();
  std::string digits;
  for (const auto* server : {&first, &second}) {
    const auto path = told(*server, "LOCKSTEP_STORE_SECRET_FILE");
    struct stat status {};
    ASSERT_EQ(stat(path.c_str(), &status), 0) << server->out();
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    const std::string text = content(path).substr(0, 64);
    EXPECT_EQ(text.size(), 64u);
    EXPECT_NE(std::exchange(digits, text), text) << "each draws its own";
    EXPECT_FALSE(contains(server->out() + server->err(), digits));
  }
}

TEST_F(Serve, TakesTheSecretThatItIsGiven) {
  const std::string digits(64, '7');
  const std::string path = folder_.write("mine", digits + "\n", 0600);
  Process by_flag(options({"--secret-file", path}));
  ASSERT_TRUE(by_flag.await_output("LOCKSTEP_STORE_SECRET_FILE=" + path + "\n"));
  Process by_file(options({}, {{"LOCKSTEP_STORE_SECRET_FILE", path}}));
  ASSERT_TRUE(by_file.await_output("LOCKSTEP_STORE_SECRET_FILE=" + path + "\n"));
  Process by_variable(options({}, {{"LOCKSTEP_STORE_SECRET", digits}}));
  ASSERT_TRUE(by_variable.await_output("the LOCKSTEP_STORE_SECRET that is set here\n"));
  EXPECT_FALSE(contains(by_variable.out() + by_variable.err(), digits));
  EXPECT_EQ(files(), Words{path}) << "none was drawn";
  by_flag.send(SIGTERM);
  EXPECT_EQ(by_flag.wait().exit_code, 0);
  EXPECT_TRUE(fs::exists(path)) << "what it was given stays";
}

TEST_F(Serve, WithoutAuthenticationItWarnsInOneLineAndServesTorchAndLockstep) {
  Process server = serving({"--store-auth", "off"});
  EXPECT_TRUE(contains(server.out(), "serves whoever comes to 127.0.0.1:")) << server.out();
  const auto address = net::parse_host_port(told(server, "LOCKSTEP_STORE"));
  {
    store::TcpStore lockstep({.address = address, .role = "test"}, patience());
    store::TorchStoreClient torch(address, patience());
    lockstep.set("key", "value");
    EXPECT_EQ(torch.get("key", patience()), "value");
  }
  server.send(SIGTERM);
  const auto result = server.wait();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(files(), Words{});
  const auto lines = lines_of(result.err);
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [](const auto& line) { return contains(line, "[lockstep store] warning: "); }),
            1)
      << result.err;
}

TEST_F(Serve, ListensWhereItIsTold) {
  const auto result = [&](const Words& flags) { return run_process(options(flags)); };
  {
    const Process server = serving({"--host", "127.0.0.1", "--port", "0"});
    const auto port = net::parse_host_port(told(server, "LOCKSTEP_STORE")).port;
    const auto taken = result({"--port", std::to_string(port)});
    EXPECT_EQ(taken.exit_code, 1);
    EXPECT_TRUE(contains(taken.err, "Address already in use")) << taken.err;
    EXPECT_EQ(lines_of(taken.err).size(), 1u) << taken.err;
    EXPECT_EQ(taken.out, "");
    EXPECT_EQ(files().size(), 1u) << "the failed one left no secret";
  }
  for (const auto* host : {"198.51.100.1", "no-such-host.invalid"}) {  // neither is of this host
    const auto elsewhere = result({"--host", host, "--port", "0"});
    EXPECT_EQ(elsewhere.exit_code, 2) << elsewhere.err;
    EXPECT_TRUE(contains(elsewhere.err, host)) << elsewhere.err;
    EXPECT_EQ(lines_of(elsewhere.err).size(), 1u) << elsewhere.err;
  }
  const Process everywhere = serving({"--host", "0.0.0.0"});
  EXPECT_TRUE(contains(everywhere.out(), "serves at 0.0.0.0:")) << everywhere.out();
  EXPECT_FALSE(contains(told(everywhere, "LOCKSTEP_STORE"), "0.0.0.0")) << "clients need an address";
}

TEST_F(Serve, BadFlagsAndSecretsAreOneLine) {
  const std::string open = folder_.write("open", std::string(64, '7') + "\n", 0604);
  const std::vector<std::pair<Words, std::string>> table = {
      {{"--max-clients", "1048576"}, "ulimit -Hn"},
      {{"--secret-file", open}, open},
      {{"--secret-file", "/no/such/file"}, "serve: --secret-file: the secret file /no/such/file can't be opened"},
      {{"--store-auth=off", "--secret-file", open}, open},
  };
  for (const auto& [flags, says] : table) {
    auto limited = options();  // so that no machine has room for a million clients
    limited.command = joined({"sh", "-c", "ulimit -n 4096; exec \"$0\" \"$@\""}, serve(flags));
    const auto result = run_process(limited);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(lines_of(result.err).size(), 1u) << result.err;
    EXPECT_TRUE(contains(result.err, says)) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(Serve, WhoHasTheSecretIsServedAndNobodyElse) {
  const Process server = serving({}, {{"LOCKSTEP_RUN_ID", "job-7"}});
  EXPECT_TRUE(contains(server.out(), "LOCKSTEP_RUN_ID=job-7 LOCKSTEP_STORE=")) << server.out();
  const auto address = net::parse_host_port(told(server, "LOCKSTEP_STORE"));
  const std::string digits = content(told(server, "LOCKSTEP_STORE_SECRET_FILE")).substr(0, 64);
  const store::Endpoint right{
      .address = address, .secret = store::Secret::parse(digits), .run_id = "job-7", .role = "test"};
  store::TcpStore store(right, patience());
  store.set("key", "value");
  auto wrong_secret = right;
  wrong_secret.secret = store::Secret::random();
  auto another_run = right;
  another_run.run_id = "job-8";
  for (const auto& wrong : {wrong_secret, another_run}) {
    EXPECT_THROW(store::TcpStore(wrong, patience()).num_keys(), StoreError);
  }
  EXPECT_EQ(store.get("key", patience()), "value") << "who was there before is served on";
}

// As a scheduler starts a job again, under the id that it had: after its end, and after all of it was killed, also
// where not all had come.
TEST_F(Serve, AnIdWhoseProcessesHaveGoneIsFreeAgain) {
  const Process server = serving();
  const auto start = [&](int rank, const Words& acts, const std::string& job = "job-7") {
    return Process({.command = joined({RANK_PROGRAM}, acts),
                    .environment = {{"RANK", std::to_string(rank)},
                                    {"WORLD_SIZE", "2"},
                                    {"LOCKSTEP_RUN_ID", job},
                                    {"LOCKSTEP_STORE", told(server, "LOCKSTEP_STORE")},
                                    {"LOCKSTEP_STORE_SECRET_FILE", told(server, "LOCKSTEP_STORE_SECRET_FILE")}}});
  };
  const auto expect_sum = [&](const std::string& job = "job-7") {
    auto zero = start(0, {"init", "sum"}, job);
    auto one = start(1, {"init", "sum"}, job);
    EXPECT_EQ(zero.wait().out, "sum 3 of 2\n");
    EXPECT_EQ(one.wait().out, "sum 3 of 2\n");
  };
  expect_sum();
  expect_sum();
  expect_sum("job-8");
  {
    auto zero = start(0, {"init", "sum", "hang"});
    auto one = start(1, {"init", "sum", "hang"});
    for (auto* rank : {&zero, &one}) ASSERT_TRUE(rank->await_output("sum 3 of 2"));
    auto third = start(0, {"init", "sum"});  // while it runs it has the id
    EXPECT_TRUE(contains(third.wait().err, "two processes are rank 0 of 2"));
    for (auto* rank : {&zero, &one}) rank->send(SIGKILL);
    for (auto* rank : {&zero, &one}) rank->wait();
  }
  expect_sum();
}

TEST_F(Serve, RaisesItsLimitOfOpenFiles) {
  auto limited = options();
  limited.command = joined({"sh", "-c", "ulimit -Sn 64; exec \"$0\" \"$@\""}, serve({"--store-auth", "off"}));
  Process server(limited);
  ASSERT_TRUE(server.await_output("serves whoever"));
  const auto address = net::parse_host_port(told(server, "LOCKSTEP_STORE"));
  std::vector<UniqueFd> clients;  // more than the soft limit, each asked for its life
  for (int i = 0; i < 100; ++i) clients.push_back(net::tcp_connect(address, patience()));
  store::TcpStore store(address, patience());
  store.set("key", "value");
  EXPECT_EQ(store.get("key", patience()), "value");
}

}  // namespace
}  // namespace lockstep::e2e::serve_test
