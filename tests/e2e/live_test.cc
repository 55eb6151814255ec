// SPDX-License-Identifier: Apache-2.0
// What can be seen of a job while it runs: `lockstep top`, `inspect` and `trace`, --metrics-port, and the line about a
// rank that the others wait for.
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "tests/e2e/training_job.h"
#include "tests/support/error_of.h"

namespace lockstep::e2e {
namespace {

using lockstep::testing::expect_text;
using lockstep::testing::kPatience;
using nlohmann::json;
using testing::run;
using testing::wait_until;

constexpr int kEndless = 1'000'000;

class Live : public TrainingJob {
 protected:
  Process slow_job(const std::string& backend, const Words& flags = {}) const {
    return Process({.command = job(2, program("job", backend, kEndless), flags),
                    .environment = {{"LOCKSTEP_TEST_SLOW_DATA", "20"}}});
  }
};

std::string id_of(const Process& launcher) {
  for (const json& one : json::parse(run({LOCKSTEP_PROGRAM, "ps", "--json"}).out)) {
    if (one["pid"] == launcher.pid()) return one["run_id"];
  }
  return "";
}

std::string get(const net::HostPort& where, const std::string& path) {
  const Deadline deadline = Deadline::after(kPatience);
  const UniqueFd fd = net::tcp_connect_once(where, deadline);
  net::send_all(fd.get(), "GET " + path + " HTTP/1.1\r\nHost: here\r\n\r\n", deadline);
  std::string text;
  std::array<std::byte, 4096> buffer;
  try {
    for (;;) {
      const auto bytes = net::recv_some(fd.get(), buffer, deadline);
      text.append(reinterpret_cast<const char*>(buffer.data()), bytes);
    }
  } catch (const net::ConnectionClosed&) {
  }
  return text;
}

TEST_F(Live, ARankThatIsSlowIsNamedAndShownInEveryView) {
  Process launcher = slow_job("", {"--metrics-port", "0"});
  ASSERT_TRUE(launcher.await_output(" % of every step: data\n"));
  expect_text(launcher.err(), {"lockstep run: rank 1 (host "});
  const std::string id = id_of(launcher);
  ASSERT_NE(id, "");

  json seen;
  // Another thread of the launcher has looked as often, or is about to.
  ASSERT_TRUE(wait_until([&] {
    const auto top = run({LOCKSTEP_PROGRAM, "top", "--json", id});
    EXPECT_EQ(top.exit_code, 0) << top.err;
    seen = json::parse(top.out);
    return !seen["straggler"].is_null();
  }));
  EXPECT_EQ(seen["straggler"]["rank"], 1) << seen;
  ASSERT_EQ(seen["ranks"].size(), 2u);
  for (const json& rank : seen["ranks"]) {
    EXPECT_EQ(rank["state"], "training");
    EXPECT_GT(rank["step"], 0);
    EXPECT_GE(rank["step_s"].get<double>(), 0.02);
    EXPECT_GT(rank["resident_bytes"], 1 << 20);
    EXPECT_TRUE(rank["loss"].is_number());
  }
  EXPECT_GT(seen["ranks"][1]["shares"]["data"].get<double>(), 0.5);
  EXPECT_GT(seen["ranks"][0]["shares"]["exposed communication"].get<double>(), 0.3);
  const auto screen = run({LOCKSTEP_PROGRAM, "top", id});
  EXPECT_EQ(screen.exit_code, 0) << screen.err;
  expect_text(screen.out,
              {id, "2 ranks on 1 host, start 1", " samples/s, loss ", "rank 1 (host ", "training", "all_reduce"});

  const auto trace = run({LOCKSTEP_PROGRAM, "trace", "--steps", "5", "-o", file("live.json"), id});
  ASSERT_EQ(trace.exit_code, 0) << trace.err;
  expect_text(trace.out, {"the timeline of 2 ranks is in " + file("live.json")});
  std::map<int, int> backwards;
  const json timeline = json::parse(std::ifstream(file("live.json")));
  for (const json& event : timeline["traceEvents"]) {
    if (event["ph"] == "X" && event["name"] == "training loop") ++backwards[event["pid"].get<int>()];
  }
  EXPECT_GE(backwards[0], 5);
  EXPECT_GE(backwards[1], 5);

  const auto inspected = run({LOCKSTEP_PROGRAM, "inspect", id});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  expect_text(inspected.out, {"\nrank 0 (host ", "\nrank 1 (host ", "    thread ", " (e2e_training): "});

  std::smatch port;
  const std::string said = launcher.err();
  ASSERT_TRUE(std::regex_search(said, port, std::regex("metrics for Prometheus: http://127.0.0.1:(\\d+)/metrics")))
      << said;
  const std::string metrics = get({"127.0.0.1", static_cast<std::uint16_t>(std::stoi(port[1]))}, "/metrics");
  expect_text(metrics, {"HTTP/1.1 200 OK", "lockstep_members{run=\"" + id + "\",state=\"training\"} 2\n",
                        "lockstep_straggler_share{run=\"" + id + "\",rank=\"1\"} ", "lockstep_steps_total{"});
  launcher.send(SIGTERM);
  launcher.wait();
  const auto gone = run({LOCKSTEP_PROGRAM, "top", id});
  EXPECT_EQ(gone.exit_code, 1);
  expect_text(gone.err, {"lockstep top: no run of this user on this host begins with '" + id + "'"});
}

TEST_F(Live, ARankThatIsSlowIsNamedOverGloo) {
  if (!HAS_GLOO) GTEST_SKIP() << "this build has no plug-in for Gloo";
  Process launcher = slow_job("gloo", {"--log-dir", file("logs")});
  ASSERT_TRUE(launcher.await_output(" % of every step: data\n"));
  expect_text(launcher.err(), {"lockstep run: rank 1 (host "});
  const auto trace = run({LOCKSTEP_PROGRAM, "trace", "-o", file("live.json"), id_of(launcher)});
  EXPECT_EQ(trace.exit_code, 0) << trace.err;
  EXPECT_TRUE(std::filesystem::exists(file("live.json"))) << "from the files of --log-dir";
  launcher.send(SIGTERM);
  launcher.wait();
}

TEST_F(Live, AProgramThatIsNoneOfOursIsShownForWhatItIs) {
  Process launcher({.command = plain(2, {"ready", "hang"})});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  const std::string id = id_of(launcher);
  expect_text(run({LOCKSTEP_PROGRAM, "top", id}).out, {"no rank has come to init_process_group"});
  const auto trace = run({LOCKSTEP_PROGRAM, "trace", id});
  EXPECT_EQ(trace.exit_code, 1);
  expect_text(trace.err, {"lockstep trace: " + id + ": no rank on this host has a trace yet"});
  launcher.send(SIGKILL);
}

TEST_F(Live, APortThatIsTakenEndsTheJobBeforeItsStart) {
  const UniqueFd other = net::tcp_listen({"127.0.0.1", 0});
  const auto port = std::to_string(net::local_address(other.get()).port);
  const auto result = run(plain(1, {"print:started"}, {"--metrics-port", port}));
  EXPECT_NE(result.exit_code, 0);
  expect_text(result.err, {"127.0.0.1:" + port});
  EXPECT_FALSE(contains(result.out, "started"));
}

}  // namespace
}  // namespace lockstep::e2e
