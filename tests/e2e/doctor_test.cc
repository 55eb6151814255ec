// SPDX-License-Identifier: Apache-2.0
// `lockstep doctor`: what it says of an environment, and that a bad lockstep-probe hurts nobody.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/net/tcp_socket.h"
#include "tests/e2e/launch.h"
#include "tests/support/error_of.h"
#include "tests/support/leftovers.h"
#include "tests/support/rank_processes.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::e2e::doctor_test {
namespace {

namespace fs = std::filesystem;
using lockstep::testing::expect_text;
using testing::run;

// A report as a test reads it.
struct Report {
  int exit_code = -1;
  nlohmann::json json;

  // The finding of that name; null if there is none.
  nlohmann::json finding(const std::string& section, const std::string& name) const {
    for (const auto& entry : json.at("findings")) {
      if (entry.at("section") == section && entry.at("name") == name) return entry;
    }
    return nullptr;
  }
  std::string value(const std::string& section, const std::string& name) const {
    const auto found = finding(section, name);
    return found.is_null() ? "(no such finding)" : found.at("value").get<std::string>();
  }
  // "value -> remedy" of each problem.
  std::string problems() const {
    std::string text;
    for (const auto& entry : json.at("findings")) {
      if (entry.at("health") != "problem") continue;
      text += entry.at("value").get<std::string>() + " -> " + entry.at("remedy").get<std::string>() + "\n";
    }
    return text;
  }
};

Report report_of(const Result& result) {
  Report report;
  report.exit_code = result.exit_code;
  report.json = nlohmann::json::parse(result.out, nullptr, false);
  if (report.json.is_discarded()) {
    ADD_FAILURE() << "no JSON: " << result.out << result.err;
    report.json = {{"findings", nlohmann::json::array()}};
    return report;
  }
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(report.json.at("ok").get<bool>(), result.exit_code == 0);
  for (const auto& entry : report.json.at("findings")) {
    EXPECT_NE(entry.at("value"), "") << entry;
    EXPECT_TRUE(entry.at("health") != "problem" || entry.at("remedy") != "") << entry;
  }
  return report;
}

Report doctor(const Variables& variables = {}, const std::string& program = LOCKSTEP_PROGRAM) {
  return report_of(run({program, "doctor", "--json"}, variables));
}

TEST(Doctor, Alone) {
  const auto report = doctor();
  EXPECT_EQ(report.exit_code, 0) << report.problems();
  EXPECT_EQ(report.value("who am I", "launcher"), "alone");
  EXPECT_TRUE(report.value("who am I", "rank").starts_with("0/1 ")) << report.value("who am I", "rank");
  expect_text(report.value("backends", "shm"), {"tried with 2 ranks"});
  for (const std::string name : {"mpi", "cuda"}) {  // found, or the reason why not
    expect_text(report.value("plug-ins", name), {"liblockstep_" + name + ".so"});
  }
  expect_text(report.value("addresses", "interfaces"), {"lo 127.0.0.1"});
  for (const auto& [section, name] : std::vector<std::pair<std::string, std::string>>{{"GPUs", "visible"},
                                                                                      {"addresses", "interface"},
                                                                                      {"limits", "cores"},
                                                                                      {"limits", "memory"},
                                                                                      {"limits", "open files"}}) {
    EXPECT_NE(report.finding(section, name), nullptr) << name;
  }
  EXPECT_EQ(report.json.at("probe").at("devices").at(0).at("name"), "cpu");
}

TEST(Doctor, ShowsWhatIsSetAndTriesEachBackendWithIt) {
  const auto report = doctor({{"GLOO_SOCKET_IFNAME", "no-such"}, {"LOCKSTEP_LIVENESS", "off"}});
  EXPECT_EQ(report.value("settings", "LOCKSTEP_LIVENESS"), "off");
  expect_text(report.value("backends", "tcp"), {"does not work here", "'no-such' matches no interface"});
}

Variables by_hand(int rank, int port, const std::string& address = "127.0.0.1", const Variables& more = {}) {
  Variables variables = {{"RANK", std::to_string(rank)},
                         {"WORLD_SIZE", "2"},
                         {"MASTER_ADDR", address},
                         {"MASTER_PORT", std::to_string(port)}};
  variables.insert(more.begin(), more.end());
  return variables;
}

// And by a launcher that agrees with them.
TEST(Doctor, VariablesSetByHand) {
  const int port = testing::free_port();
  for (const int rank : {0, 1}) {
    const std::string number = std::to_string(rank);
    const auto report =
        doctor(by_hand(rank, port, "127.0.0.1", {{"OMPI_COMM_WORLD_RANK", number}, {"OMPI_COMM_WORLD_SIZE", "2"}}));
    expect_text(report.value("who am I", "ignored"), {"OMPI_COMM_WORLD_RANK=" + number});
    EXPECT_EQ(report.exit_code, 0) << report.problems();
    EXPECT_EQ(report.value("who am I", "launcher"), "RANK and WORLD_SIZE");
    EXPECT_TRUE(report.value("who am I", "rank").starts_with(std::to_string(rank) + "/2 "));
    expect_text(report.value("who am I", "variables"), {"MASTER_PORT=" + std::to_string(port)});
    expect_text(report.value("where to meet", "meeting"), {"127.0.0.1:" + std::to_string(port)});
  }
}

// Behind "NAME=" in what a `lockstep store serve` prints.
std::string told(const Process& server, const std::string& name) {
  const auto text = server.out();
  const auto at = text.find(name + "=");
  if (at == std::string::npos) return {};
  const auto start = at + name.size() + 1;
  return text.substr(start, text.find_first_of(" ,\n", start) - start);
}

TEST(Doctor, SaysWhatIsWrongWithAPlaceToMeet) {
  const std::string digits(64, 'c');
  Process server({.command = {LOCKSTEP_PROGRAM, "store", "serve"}, .environment = {{"LOCKSTEP_STORE_SECRET", digits}}});
  ASSERT_TRUE(server.await_output("serves at"));
  const auto listener = net::tcp_listen({"127.0.0.1", 0});
  const int taken = net::local_address(listener.get()).port;
  const int port = testing::free_port();
  const std::string gone = "127.0.0.1:" + std::to_string(port);
  const std::string store = told(server, "LOCKSTEP_STORE");
  const auto at_store = [](const std::string& address, const Variables& secret = {}) {
    Variables variables = {{"LOCKSTEP_STORE", address}, {"RANK", "1"}, {"WORLD_SIZE", "2"}};
    variables.insert(secret.begin(), secret.end());
    return variables;
  };
  struct Case {
    Variables variables;
    std::vector<std::string> says;  // of problems; none if this is empty
  };
  const std::vector<Case> cases = {
      {by_hand(0, taken), {"Address already in use"}},
      {by_hand(1, taken), {}},                                              // there it should be taken, by rank 0
      {by_hand(0, port, "198.51.100.1"), {"not an address of this host"}},  // set aside for documentation
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, {"set MASTER_ADDR"}},
      {by_hand(0, port, "127.0.0.1", {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}}),
       {"rank 0/2", "rank 3/4"}},
      {at_store(gone), {gone}},
      {at_store(store, {{"LOCKSTEP_STORE_SECRET", digits}}), {}},
      {at_store(store, {{"LOCKSTEP_STORE_SECRET", std::string(64, 'd')}}), {store}},
      {at_store(store), {"LOCKSTEP_STORE_SECRET"}}};
  for (const auto& [variables, says] : cases) {
    SCOPED_TRACE(::testing::PrintToString(variables));
    const auto report = doctor(variables);
    EXPECT_EQ(report.exit_code, says.empty() ? 0 : 1) << report.problems();
    for (const auto& text : says) expect_text(report.problems(), {text});
  }
  const auto right = doctor(cases[6].variables);
  expect_text(right.value("where to meet", "store"), {"answers to this secret"});
}

TEST(Doctor, AsARankOfLockstepRun) {
  EXPECT_EQ(run({LOCKSTEP_PROGRAM, "doctor"}, {{"RANK", "1"}}).exit_code, 1) << "of no world";
  const auto result = run(run_command({"-n", "2"}, LOCKSTEP_PROGRAM, {"doctor"}));
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  expect_text(result.out, {"[rank 0] a rank could start here", "[rank 1] a rank could start here", "lockstep run",
                           " answers"});  // the job's store
}

TEST(Doctor, UnderTorchrunTheAgentsStoreIsAsked) {
  Process agent({.command = {LOCKSTEP_PROGRAM, "store", "serve", "--store-auth=off"}});
  ASSERT_TRUE(agent.await_output("serves whoever"));
  const auto report = doctor(by_hand(0, std::stoi(told(agent, "MASTER_PORT")), told(agent, "MASTER_ADDR"),
                                     {{"LOCAL_RANK", "0"},
                                      {"LOCAL_WORLD_SIZE", "2"},
                                      {"TORCHELASTIC_RUN_ID", "x"},
                                      {"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  EXPECT_EQ(report.exit_code, 0) << report.problems();
  EXPECT_EQ(report.value("who am I", "launcher"), "torchrun");
  expect_text(report.value("where to meet", "store"), {"answers as a server of"});
}

class DoctorFiles : public ::testing::Test {
 protected:
  // The launcher, copied beside a lockstep-probe that runs `script`.
  std::string launcher_with_probe(const std::string& script) {
    fs::copy_file(LOCKSTEP_PROGRAM, folder_ / "lockstep", fs::copy_options::overwrite_existing);
    folder_.write("lockstep-probe", "#!/bin/sh\n" + script + "\n", 0700);
    return folder_ / "lockstep";
  }
  // Its report must hold this one problem, with these words.
  void expect_probe_problem(const std::string& launcher, const std::string& says, const Words& flags = {}) {
    const auto report = report_of(run(joined({launcher, "doctor", "--json"}, flags)));
    EXPECT_EQ(report.exit_code, 1);
    EXPECT_EQ(report.json.at("problems"), 1) << report.problems();
    expect_text(report.problems(), {says});
    EXPECT_TRUE(report.json.at("probe").is_null());
  }

  const testing::TemporaryFolder folder_;
};

TEST_F(DoctorFiles, ASecretThatOthersCanReadIsAProblemAndIsNotShown) {
  const std::string digits(64, 'a');
  const auto path = folder_.write("secret", digits + "\n", 0704);
  const int port = testing::free_port();
  const auto result = run({LOCKSTEP_PROGRAM, "doctor", "--json"},
                          by_hand(1, port, "127.0.0.1", {{"LOCKSTEP_STORE_SECRET_FILE", path}}));
  EXPECT_FALSE(contains(result.out + result.err, digits));
  const auto report = report_of(result);
  EXPECT_EQ(report.exit_code, 1);
  expect_text(report.problems(), {path.native()});
  const auto fine =
      run({LOCKSTEP_PROGRAM, "doctor"}, by_hand(1, port, "127.0.0.1", {{"LOCKSTEP_STORE_SECRET", digits}}));
  EXPECT_EQ(fine.exit_code, 0) << fine.out;
  expect_text(fine.out, {"given by LOCKSTEP_STORE_SECRET"});
  EXPECT_FALSE(contains(fine.out + fine.err, digits));
}

TEST_F(DoctorFiles, FewOpenFilesAreAProblemWithARemedy) {
  const auto report = report_of(run({"sh", "-c", "ulimit -Sn 40; exec \"$0\" doctor --json", LOCKSTEP_PROGRAM}));
  EXPECT_EQ(report.exit_code, 1);
  expect_text(report.problems(), {"ulimit -n"});
  EXPECT_TRUE(report.value("limits", "open files").starts_with("40 (hard ")) << report.value("limits", "open files");
}

TEST_F(DoctorFiles, AProbeThatIsNotThereFailsOrHangsIsOneProblemAndNothingOfItIsLeft) {
  testing::Footprint footprint;
  expect_probe_problem(launcher_with_probe("exit 5"), "exited with code 5");
  expect_probe_problem(launcher_with_probe("sleep 3600 & sleep 3600"), "no answer within 0.5 s",
                       {"--probe-timeout", "0.5"});
  const auto launcher = launcher_with_probe("");
  fs::remove(folder_ / "lockstep-probe");
  expect_probe_problem(launcher, "No such file");
  EXPECT_EQ(footprint.left_after(testing::leftover_deadline()), "");
  EXPECT_EQ(doctor({}, launcher_with_probe("exec " PROBE_PROGRAM)).exit_code, 0) << "a copy of both finds its own";
}

}  // namespace
}  // namespace lockstep::e2e::doctor_test
