// SPDX-License-Identifier: Apache-2.0
// What can be seen of a job while it runs: `lockstep top`, `inspect` and `trace`, --metrics-port, and the line about a
// rank that the others wait for.
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <vector>

#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "tests/e2e/job.h"
#include "tests/e2e/training_job.h"
#include "tests/support/error_of.h"
#include "tests/support/source_line.h"

namespace lockstep::e2e::live_test {
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

// As the GPU's driver tells it, which lockstep-probe asks.
TEST_F(Live, TheUseOfGpusIsShownWhereThereAreSome) {
  Process launcher = slow_job("");
  ASSERT_TRUE(launcher.await_output("at 10\n"));
  const std::string id = id_of(launcher);
  const auto pids = numbers_in(launcher.err(), "pid (\\d+)\n");
  ASSERT_EQ(pids.size(), 2u);
  ASSERT_TRUE(wait_until([&] {
    return json::parse(run({LOCKSTEP_PROGRAM, "top", "--json", id}).out)["ranks"].size() == 2;
  })) << "ranks tell of themselves in heartbeats";
  const auto top = [&](const std::string& gpus) {
    return run({LOCKSTEP_PROGRAM, "top", id}, {{"LOCKSTEP_NVML_LIB", FAKE_NVML}, {"LOCKSTEP_FAKE_NVML", gpus}}).out;
  };
  const std::string first = std::to_string(pids[0]);
  const std::string shown = top("55 " + first + ":3221225472 1:7;- " + std::to_string(pids[1]) + ":-");
  expect_text(shown, {"  GPU  ", "55% 3.0G  " + first});
  for (const std::string none : {"fails", ""}) EXPECT_FALSE(contains(top(none), "GPU"));
  launcher.send(SIGTERM);
  launcher.wait();
}

net::HostPort metrics_of(const Process& launcher) {
  std::smatch port;
  const std::string said = launcher.err();
  EXPECT_TRUE(std::regex_search(said, port, std::regex("metrics for Prometheus: http://127.0.0.1:(\\d+)/metrics")))
      << said;
  return {"127.0.0.1", static_cast<std::uint16_t>(port.empty() ? 0 : std::stoi(port[1]))};
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
  std::map<std::string, json> scalars;
  for (const json& scalar : seen["scalars"]) scalars[scalar["name"]] = scalar["value"];
  EXPECT_EQ(scalars["lr"], 0.001) << seen;
  EXPECT_EQ(scalars["start"], 0) << seen;
  EXPECT_GT(seen["ranks"][1]["shares"]["data"].get<double>(), 0.5);
  EXPECT_GT(seen["ranks"][0]["shares"]["waited communication"].get<double>(), 0.3);
  expect_text(run({LOCKSTEP_PROGRAM, "top", id}).out,
              {id, "2 ranks on 1 host, start 1", "lr 0.001 (step ", "rank 1 (host ", "training", "all_reduce"});
  const auto trace = run({LOCKSTEP_PROGRAM, "trace", "--steps", "5", "-o", file("live.json"), id});
  ASSERT_EQ(trace.exit_code, 0) << trace.err;
  expect_text(trace.out, {"the timeline of 2 ranks is in " + file("live.json")});
  std::map<int, int> loops;
  const json timeline = json::parse(content(file("live.json")));
  for (const json& event : timeline["traceEvents"]) {
    if (event["ph"] == "X" && event["name"] == "training loop") ++loops[event["pid"].get<int>()];
  }
  EXPECT_TRUE(loops[0] >= 5 && loops[1] >= 5) << timeline;

  const std::string metrics = get(metrics_of(launcher), "/metrics");
  expect_text(metrics, {"HTTP/1.1 200 OK", "lockstep_members{run=\"" + id + "\",state=\"training\"} 2\n",
                        "lockstep_straggler_share{run=\"" + id + "\",rank=\"1\"} ", "lockstep_steps_total{",
                        "lockstep_scalar{run=\"" + id + "\",name=\"lr\"} 0.001\n"});
  launcher.send(SIGTERM);
  launcher.wait();
  const auto gone = run({LOCKSTEP_PROGRAM, "top", id});
  EXPECT_EQ(gone.exit_code, 1);
  expect_text(gone.err, {"lockstep top: no run of this user on this host begins with '" + id + "'"});
}

// Rank 1 brings it in step 5; in the next one every rank has it from its weights.
TEST_F(Live, ANanIsNamedWithItsRankAndParameterInEveryView) {
  for (const std::string backend : {"shm", "tcp"}) {
    const std::string logs = file(backend), timeline = file(backend + ".json");
    Process launcher({.command = job(2, program("job" + backend, backend, kEndless),
                                     {"--metrics-port", "0", "--log-dir", logs, "--tee", "3", "--trace", timeline}),
                      .environment = {{"LOCKSTEP_TEST_NAN_AT", "5"}}});
    const std::string text = "NaN in rank 1's gradient of '3.weight' in step 5";
    ASSERT_TRUE(launcher.await_output("Reducer: " + text + "."));
    ASSERT_TRUE(launcher.await_output("Reducer: NaN in rank 0's gradient of '3.weight' in step 6."));
    const std::string id = id_of(launcher);
    // Heartbeats bring it.
    ASSERT_TRUE(wait_until([&] {
      return contains(run({LOCKSTEP_PROGRAM, "top", id}).out, text + "; by now 2 ranks have had some\n");
    }));
    expect_text(get(metrics_of(launcher), "/metrics"),
                {"kind=\"nan\",parameter=\"3.weight\"} 5\n", "kind=\"nan\",parameter=\"3.weight\"} 6\n",
                 "lockstep_wrong_gradient_steps_total{"});
    const auto trace = run({LOCKSTEP_PROGRAM, "trace", "-o", file("live.json"), id});
    EXPECT_EQ(trace.exit_code, 0) << trace.err << "from the files of --log-dir";
    launcher.send(SIGTERM);
    expect_text(launcher.wait().err, {"lockstep run: " + text + "\n"});
    const auto report = run({LOCKSTEP_PROGRAM, "report", logs});
    EXPECT_EQ(report.exit_code, 0) << report.err;
    expect_text(report.out, {text + "\n"});
    expect_text(content(logs + "/report.html"), {"Numbers that went wrong", "gradient of '3.weight' in step 5"});
    std::vector<std::string> flags;
    const json events = json::parse(content(timeline));
    for (const json& event : events["traceEvents"]) {
      if (event["ph"] == "i") flags.push_back(event["name"]);
    }
    ASSERT_EQ(flags.size(), 2u);
    EXPECT_EQ(flags[1], text) << "on rank 1, behind rank 0's";
  }
}

// Where replicas are known to be equal is in top and the metrics, and where they came apart in the report.
TEST_F(Live, ReplicasThatComeApartAreInTheViews) {
  Process launcher({.command = job(3, program("job", "", kEndless),
                                   {"--metrics-port", "0", "--log-dir", file("logs"), "--tee", "3"}),
                    .environment = {{"LOCKSTEP_TEST_APART_AT", "3050"}, {"LOCKSTEP_TEST_SLOW_DATA", "2"}}});
  ASSERT_TRUE(launcher.await_output("at 210\n"));
  const std::string id = id_of(launcher);
  const net::HostPort metrics = metrics_of(launcher);
  ASSERT_TRUE(wait_until([&] {
    return contains(run({LOCKSTEP_PROGRAM, "top", id}).out, ", replicas equal in step ");
  }));
  expect_text(get(metrics, "/metrics"), {"\nlockstep_replicas_equal_step{run=\"" + id + "\",rank=\"2\""});
  EXPECT_NE(launcher.wait().exit_code, 0);
  const std::string text = "replicas differ in step 3100, from parameter '3.bias' on: rank 2 differs";
  expect_text(run({LOCKSTEP_PROGRAM, "report", file("logs")}).out, {text + "\n"});
  expect_text(content(file("logs/report.jsonl")), {"\"kind\":\"apart\""});
}

// What `lockstep inspect` has of each rank, by rank.
std::map<int, std::string> inspected(const std::string& id) {
  const auto result = run({LOCKSTEP_PROGRAM, "inspect", id});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::map<int, std::string> ranks;
  const std::regex head("\\nrank (\\d+) \\(host [^\n]*");
  for (auto it = std::sregex_iterator(result.out.begin(), result.out.end(), head); it != std::sregex_iterator(); ++it) {
    const auto begin = static_cast<std::size_t>(it->position());
    const auto end = result.out.find("\nrank ", begin + 1);
    ranks[std::stoi((*it)[1])] = result.out.substr(begin, end - begin);
  }
  return ranks;
}

// Whether a rank's stack has a wait of lockstep's. clang leaves the namespace out, and gdb then has the line.
bool waits_in_lockstep(const std::string& stack) {
  static const std::regex kWait("\n    #\\d+ [^\n]*(lockstep::[^\n]*wait|\\bwait \\(.* at [^\n]*runtime/comm/)");
  return std::regex_search(stack, kWait);
}

bool has_stacks() { return testing::has_program("gdb") || testing::has_program("eu-stack"); }

// Rank 1 stands still in code of its own, and the others wait for it: each is seen where it is.
struct Standstill {
  std::string name;
  Words actions;
  std::string rank_1;  // says this
  std::string others;  // say this
  bool has_stack = true;
};
void PrintTo(const Standstill& standstill, std::ostream* out) { *out << standstill.name; }

class InspectShows : public Live, public ::testing::WithParamInterface<Standstill> {};

const std::string kSecondSum = "collective 2 all_reduce";
INSTANTIATE_TEST_SUITE_P(
    ARank, InspectShows,
    ::testing::Values(
        Standstill{
            "ThatHangs", {"init", "sum", "hang@1", "loop"}, ", last collective 1 all_reduce, none since ", kSecondSum},
        Standstill{"ThatHangsOverTcp",
                   {"backend:tcp", "init", "sum", "hang@1", "loop"},
                   ", last collective 1 all_reduce, none since ",
                   kSecondSum},
        Standstill{"ThatHasNotComeToTheGroup", {"hang@1", "init", "sum"}, "): no group\n    thread ", ": starting"},
        // A debugger would wait for a process that is stopped to go on.
        Standstill{"ThatIsStopped",
                   {"init", "sum", "raise:19@1", "loop"},
                   "no stacks: the process is stopped",
                   kSecondSum,
                   false}),
    [](const auto& test) { return test.param.name; });

TEST_P(InspectShows, WhereEachRankStands) {
  const auto& [name, actions, rank_1, others, has_stack] = GetParam();
  Process launcher({.command = run_command({"-n", "3"}, RANK_PROGRAM, actions)});
  std::string id;
  ASSERT_TRUE(wait_until([&] { return !(id = id_of(launcher)).empty(); }));
  std::map<int, std::string> ranks;
  ASSERT_TRUE(wait_until([&, &says = rank_1, &wait = others] {
    ranks = inspected(id);
    return ranks.size() == 3 && contains(ranks[0], wait) && contains(ranks[2], wait) && contains(ranks[1], says);
  })) << ranks[0]
      << ranks[1];
  if (!has_stack) {
    EXPECT_FALSE(contains(ranks[1], "#0 ")) << ranks[1];
  } else if (has_stacks()) {
    EXPECT_TRUE(std::regex_search(ranks[1], std::regex("\n    #0 [^\n]*pause"))) << ranks[1];
    expect_text(ranks[1], {": sleeping", "perform", testing::line_of_hang()});
    for (const int rank : {0, 2}) {
      EXPECT_FALSE(contains(ranks[rank], "pause")) << ranks[rank];
      EXPECT_TRUE(others != kSecondSum || waits_in_lockstep(ranks[rank])) << ranks[rank];
    }
  }
  launcher.send(SIGKILL);
}

TEST_F(Live, AProgramThatIsNoneOfOursIsShownForWhatItIs) {
  Process launcher({.command = plain(2, {"ready", "hang"})});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  const std::string id = id_of(launcher);
  const auto top = run({LOCKSTEP_PROGRAM, "top", id}).out;
  expect_text(top, {"no rank has reported yet"});
  EXPECT_TRUE(std::regex_search(top, std::regex("\n1 +\\S+ +no group .* \\d+M +\\d+\\.\\d s +\\d+ +-\n"))) << top;
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
}  // namespace lockstep::e2e::live_test
