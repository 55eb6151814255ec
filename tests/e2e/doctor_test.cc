// SPDX-License-Identifier: Apache-2.0
// `lockstep doctor`: what it says of an environment, and that a bad lockstep-probe hurts nobody.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/net/tcp_socket.h"
#include "tests/e2e/launch.h"
#include "tests/support/leftovers.h"
#include "tests/support/rank_processes.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::e2e::doctor_test {
namespace {

namespace fs = std::filesystem;
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
  EXPECT_TRUE(contains(report.value("backends", "shm"), "tried with 2 ranks"));
  for (const auto* name : {"mpi", "cuda"}) {  // found, or the reason why not
    const auto value = report.value("plug-ins", name);
    EXPECT_TRUE(contains(value, std::string("liblockstep_") + name + ".so")) << value;
  }
  EXPECT_NE(report.finding("GPUs", "visible"), nullptr);
  EXPECT_TRUE(contains(report.value("addresses", "interfaces"), "lo 127.0.0.1"));
  EXPECT_NE(report.finding("addresses", "interface"), nullptr);
  for (const auto* name : {"cores", "memory", "open files"}) {
    EXPECT_NE(report.finding("limits", name), nullptr) << name;
  }
  EXPECT_EQ(report.json.at("probe").at("devices").at(0).at("name"), "cpu");
}

TEST(Doctor, TextEndsWithTheVerdict) {
  const auto fine = run({LOCKSTEP_PROGRAM, "doctor"});
  EXPECT_EQ(fine.exit_code, 0);
  EXPECT_EQ(lines_of(fine.out).back(), "a rank could start here");
  const auto broken = run({LOCKSTEP_PROGRAM, "doctor"}, {{"RANK", "1"}});
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_EQ(lines_of(broken.out).back(), "1 problem: a rank could not start here, or not as asked");
  EXPECT_TRUE(contains(broken.out, "PROBLEM: init_process_group: RANK is set but WORLD_SIZE is not")) << broken.out;
}

Variables by_hand(int rank, int port, const std::string& address = "127.0.0.1") {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", "2"},
          {"MASTER_ADDR", address},
          {"MASTER_PORT", std::to_string(port)}};
}

TEST(Doctor, VariablesSetByHand) {
  const int port = testing::free_port();
  for (const int rank : {0, 1}) {
    const auto report = doctor(by_hand(rank, port));
    EXPECT_EQ(report.exit_code, 0) << report.problems();
    EXPECT_EQ(report.value("who am I", "launcher"), "RANK and WORLD_SIZE");
    EXPECT_TRUE(report.value("who am I", "rank").starts_with(std::to_string(rank) + "/2 "));
    EXPECT_TRUE(contains(report.value("who am I", "variables"), "MASTER_PORT=" + std::to_string(port)));
    EXPECT_TRUE(contains(report.value("where to meet", "meeting"), "127.0.0.1:" + std::to_string(port)));
  }
}

TEST(Doctor, APortThatIsTakenIsAProblemOfRankZeroOnly) {
  const auto listener = net::tcp_listen({"127.0.0.1", 0});
  const int port = net::local_address(listener.get()).port;
  const auto zero = doctor(by_hand(0, port));
  EXPECT_EQ(zero.exit_code, 1);
  EXPECT_TRUE(contains(zero.problems(), "Address already in use")) << zero.problems();
  EXPECT_EQ(doctor(by_hand(1, port)).exit_code, 0) << "there it should be taken, by rank 0";
}

TEST(Doctor, AnAddressOfAnotherHostIsAProblemOfRankZero) {
  const auto report = doctor(by_hand(0, testing::free_port(), "198.51.100.1"));  // set aside for documentation
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_TRUE(contains(report.problems(), "not an address of this host")) << report.problems();
}

TEST(Doctor, NoPlaceToMeetIsAProblem) {
  const auto report = doctor({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_TRUE(contains(report.problems(), "set MASTER_ADDR")) << report.problems();
}

TEST(Doctor, LaunchersThatDisagreeAreBothPrinted) {
  auto variables = by_hand(0, testing::free_port());
  variables["OMPI_COMM_WORLD_RANK"] = "3";
  variables["OMPI_COMM_WORLD_SIZE"] = "4";
  const auto report = doctor(variables);
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_TRUE(contains(report.problems(), "rank 0/2")) << report.problems();
  EXPECT_TRUE(contains(report.problems(), "rank 3/4")) << report.problems();
}

TEST(Doctor, LaunchersThatAgreeAreNamedWithWhatIsIgnored) {
  auto variables = by_hand(1, testing::free_port());
  variables["OMPI_COMM_WORLD_RANK"] = "1";
  variables["OMPI_COMM_WORLD_SIZE"] = "2";
  const auto report = doctor(variables);
  EXPECT_EQ(report.exit_code, 0) << report.problems();
  EXPECT_TRUE(contains(report.value("who am I", "ignored"), "OMPI_COMM_WORLD_RANK=1"));
}

TEST(Doctor, AsARankOfLockstepRun) {
  const auto result = run(run_command({"-n", "2"}, LOCKSTEP_PROGRAM, {"doctor"}));
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  for (const std::string rank : {"0", "1"}) {
    EXPECT_TRUE(contains(result.out, "[rank " + rank + "] a rank could start here")) << result.out;
  }
  EXPECT_TRUE(contains(result.out, "lockstep run")) << result.out;
  EXPECT_TRUE(contains(result.out, " answers")) << "the job's store was asked: " << result.out;
}

TEST(Doctor, AStoreThatIsGoneIsAProblem) {
  const auto address = "127.0.0.1:" + std::to_string(testing::free_port());
  const auto report = doctor({{"LOCKSTEP_STORE", address}, {"RANK", "0"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_TRUE(contains(report.problems(), address)) << report.problems();
}

// Behind "NAME=" in what a `lockstep store serve` prints.
std::string told(const Process& server, const std::string& name) {
  const auto text = server.out();
  const auto at = text.find(name + "=");
  if (at == std::string::npos) return {};
  const auto start = at + name.size() + 1;
  return text.substr(start, text.find_first_of(" ,\n", start) - start);
}

TEST(Doctor, AsksTheStoreWithTheSecretItIsGiven) {
  const std::string digits(64, 'c');
  Process server({.command = {LOCKSTEP_PROGRAM, "store", "serve"}, .environment = {{"LOCKSTEP_STORE_SECRET", digits}}});
  ASSERT_TRUE(server.await_output("serves at"));
  Variables variables = {{"LOCKSTEP_STORE", told(server, "LOCKSTEP_STORE")},
                         {"LOCKSTEP_STORE_SECRET", digits},
                         {"RANK", "1"},
                         {"WORLD_SIZE", "2"}};
  const auto right = doctor(variables);
  EXPECT_EQ(right.exit_code, 0) << right.problems();
  EXPECT_TRUE(contains(right.value("where to meet", "store"), "answers to this secret"));
  variables["LOCKSTEP_STORE_SECRET"] = std::string(64, 'd');
  const auto wrong = doctor(variables);
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_TRUE(contains(wrong.problems(), variables["LOCKSTEP_STORE"])) << wrong.problems();
  variables.erase("LOCKSTEP_STORE_SECRET");
  const auto none = doctor(variables);
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_TRUE(contains(none.problems(), "LOCKSTEP_STORE_SECRET")) << none.problems();
}

TEST(Doctor, UnderTorchrunTheAgentsStoreIsAsked) {
  Process agent({.command = {LOCKSTEP_PROGRAM, "store", "serve", "--store-auth=off"}});
  ASSERT_TRUE(agent.await_output("serves whoever"));
  const auto report = doctor({{"RANK", "0"},
                              {"WORLD_SIZE", "2"},
                              {"LOCAL_RANK", "0"},
                              {"LOCAL_WORLD_SIZE", "2"},
                              {"MASTER_ADDR", told(agent, "MASTER_ADDR")},
                              {"MASTER_PORT", told(agent, "MASTER_PORT")},
                              {"TORCHELASTIC_RUN_ID", "x"},
                              {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_EQ(report.exit_code, 0) << report.problems();
  EXPECT_EQ(report.value("who am I", "launcher"), "torchrun");
  EXPECT_TRUE(contains(report.value("where to meet", "store"), "answers as a server of")) << report.json;
}

TEST(Doctor, AFileThatIsNoPlugInIsRefusedWithTheReason) {
  const testing::TemporaryFolder folder;
  folder.write("liblockstep_mpi.so", "no library at all");
  const auto report = doctor({{"LOCKSTEP_PLUGIN_PATH", folder.native()}});
  EXPECT_EQ(report.exit_code, 0) << "what nobody asked for is not a problem: " << report.problems();
  const auto value = report.value("plug-ins", "mpi");
  EXPECT_TRUE(value.starts_with("not here: ")) << value;
  EXPECT_TRUE(contains(value, (folder / "liblockstep_mpi.so").native())) << value;
}

class DoctorFiles : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text, fs::perms mode) const {
    return folder_.write(name, text, static_cast<unsigned>(mode));
  }
  // The launcher, copied beside a lockstep-probe that runs `script`.
  std::string launcher_with_probe(const std::string& script) {
    fs::copy_file(LOCKSTEP_PROGRAM, folder_ / "lockstep", fs::copy_options::overwrite_existing);
    write("lockstep-probe", "#!/bin/sh\n" + script + "\n", fs::perms::owner_all);
    return folder_ / "lockstep";
  }
  // Its report must hold this one problem, with these words.
  void expect_probe_problem(const std::string& script, const std::string& says, const Words& flags = {}) {
    const auto result = run(joined({launcher_with_probe(script), "doctor", "--json"}, flags));
    const auto report = report_of(result);
    EXPECT_EQ(report.exit_code, 1) << script;
    EXPECT_EQ(report.json.at("problems"), 1) << report.problems();
    EXPECT_TRUE(contains(report.problems(), says)) << script << ": " << report.problems();
    EXPECT_TRUE(report.json.at("probe").is_null());
  }

  const testing::TemporaryFolder folder_;
};

TEST_F(DoctorFiles, ASecretThatOthersCanReadIsAProblemAndIsNotShown) {
  const std::string digits(64, 'a');
  const auto path = write("secret", digits + "\n", fs::perms::owner_all | fs::perms::others_read);
  auto variables = by_hand(1, testing::free_port());
  variables["LOCKSTEP_STORE_SECRET_FILE"] = path;
  const auto result = run({LOCKSTEP_PROGRAM, "doctor", "--json"}, variables);
  EXPECT_FALSE(contains(result.out + result.err, digits));
  const auto report = report_of(result);
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_TRUE(contains(report.problems(), path)) << report.problems();
  variables = by_hand(1, testing::free_port());
  variables["LOCKSTEP_STORE_SECRET"] = digits;
  const auto fine = run({LOCKSTEP_PROGRAM, "doctor"}, variables);
  EXPECT_EQ(fine.exit_code, 0) << fine.out;
  EXPECT_TRUE(contains(fine.out, "given by LOCKSTEP_STORE_SECRET")) << fine.out;
  EXPECT_FALSE(contains(fine.out + fine.err, digits));
}

TEST_F(DoctorFiles, FewOpenFilesAreAProblemWithARemedy) {
  const auto result = run({"sh", "-c", "ulimit -Sn 40; exec \"$0\" doctor --json", LOCKSTEP_PROGRAM});
  const auto report = report_of(result);
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_TRUE(contains(report.problems(), "ulimit -n")) << report.problems();
  EXPECT_TRUE(report.value("limits", "open files").starts_with("40 (hard ")) << report.value("limits", "open files");
}

TEST_F(DoctorFiles, AProbeThatIsNotThereCrashesOrTalksNonsenseIsOneProblem) {
  expect_probe_problem("exit 5", "exited with code 5");
  expect_probe_problem("echo 'libcuda: broken' >&2; kill -SEGV $$", "(SIGSEGV): libcuda: broken");
  expect_probe_problem("echo hello", "not JSON; it begins: 'hello'");
  expect_probe_problem("echo '{\"lockstep\":\"0.0.1\"}'", "version 0.0.1");
  expect_probe_problem("", "can't be used");
  const auto launcher = launcher_with_probe("");
  fs::remove(folder_ / "lockstep-probe");
  const auto report = doctor({}, launcher);
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_TRUE(contains(report.problems(), "No such file")) << report.problems();
}

TEST_F(DoctorFiles, AProbeThatHangsIsKilledAndNothingOfItIsLeft) {
  testing::Footprint footprint;
  expect_probe_problem("sleep 3600 & sleep 3600", "no answer within 0.5 s", {"--probe-timeout", "0.5"});
  // Babbling for ever is no answer either.
  expect_probe_problem("while :; do echo y; done", "no answer within 0.5 s", {"--probe-timeout", "0.5"});
  EXPECT_EQ(footprint.left_after(testing::leftover_deadline()), "");
}

TEST_F(DoctorFiles, ACopyOfBothFindsItsOwnProbe) {
  const auto result = run({launcher_with_probe("exec " PROBE_PROGRAM), "doctor", "--json"});
  EXPECT_EQ(report_of(result).exit_code, 0) << result.out;
}

}  // namespace
}  // namespace lockstep::e2e::doctor_test
