// SPDX-License-Identifier: Apache-2.0
// The doctor's parts: what is made of files, of the probe's output, of an error's message.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "launcher/doctor/finding.h"
#include "launcher/doctor/gpu_findings.h"
#include "launcher/doctor/host_findings.h"
#include "launcher/doctor/probe_findings.h"
#include "launcher/doctor/variable_findings.h"
#include "launcher/process/helper_program.h"
#include "launcher/process/process_table.h"
#include "launcher/process/spawn.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/wait_until.h"

namespace lockstep::launcher::doctor::doctor_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class Folder : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const { root_.write(name, text); }
  std::string path(const std::string& name) const { return root_ / name; }

  const lockstep::testing::TemporaryFolder root_;
};

const Finding& named(const Findings& findings, const std::string& name) {
  const auto found =
      std::find_if(findings.begin(), findings.end(), [&](const auto& finding) { return finding.name == name; });
  if (found == findings.end()) throw std::runtime_error("no finding " + name);
  return *found;
}

using HostFindings = Folder;

TEST_F(HostFindings, ReadTheFilesTheyAreTold) {
  write("proc/self/cgroup", "0::/job\n");
  write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable:   1048576 kB\n");
  write("proc/sys/net/ipv4/ip_local_port_range", "40000\t40010\n");
  write("cgroup/job/memory.max", "67108864\n");
  write("cgroup/job/cpu.max", "150000 100000\n");
  const auto findings = host_findings({.proc = path("proc"), .cgroup = path("cgroup")});
  EXPECT_EQ(named(findings, "memory").value, "1.0 GiB available; cgroup limit 64.0 MiB");
  EXPECT_EQ(named(findings, "memory").health, Health::note) << "64 MiB is little";
  EXPECT_NE(named(findings, "cores").value.find("cgroup quota 1.5"), std::string::npos);
  EXPECT_EQ(named(findings, "free ports are from").value, "40000 to 40010");
  EXPECT_EQ(named(findings, "free ports are from").health, Health::note);
  write("cgroup/job/memory.max", "1048576\n");
  EXPECT_EQ(named(host_findings({.proc = path("proc"), .cgroup = path("cgroup")}), "memory").health, Health::problem);
}

TEST(VariableFindings, ShowWhatIsSetAndNoteWhatNothingReads) {
  const Environment environment({{"LOCKSTEP_TIMOUT", "30"},
                                 {"LOCKSTEP_LIVENESS", "o\nff"},
                                 {"LOCKSTEP_STORE_SECRET", "a secret"},
                                 {"LOCKSTEP_STORE", ""},
                                 {"PATH", "/bin"}});
  const auto findings = variable_findings(environment);
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].name + "=" + findings[0].value, "LOCKSTEP_LIVENESS=o?ff");
  EXPECT_EQ(findings[1].name + "=" + findings[1].value, "LOCKSTEP_STORE_SECRET=set");
  EXPECT_EQ(findings[2].name, "LOCKSTEP_TIMOUT");
  EXPECT_EQ(findings[2].health, Health::note);
  EXPECT_NE(findings[2].remedy.find("did you mean LOCKSTEP_TIMEOUT?"), std::string::npos) << findings[2].remedy;
  EXPECT_EQ(count_problems(findings), 0);
  EXPECT_EQ(variable_findings(Environment()).at(0).value, "none of lockstep's is set");
}

TEST(VariableFindings, TellThatAVariableOfAnOlderLockstepIsNotRead) {
  Environment environment;
  environment.set("LOCKSTEP_TCP_CONGESTION", "system");
  const auto findings = variable_findings(environment);
  EXPECT_EQ(named(findings, "LOCKSTEP_TCP_CONGESTION").value, "set, and nothing reads it");
}

TEST(VariableFindings, APortRangeThatIsNoneIsAProblemWithItsRemedy) {
  Environment environment;
  environment.set("LOCKSTEP_PORT_RANGE", "7");
  const auto findings = variable_findings(environment);
  EXPECT_EQ(count_problems(findings), 1);
  EXPECT_NE(named(findings, "ports").value.find("LOCKSTEP_PORT_RANGE='7'"), std::string::npos);
  EXPECT_NE(named(findings, "ports").remedy.find("give FIRST-LAST"), std::string::npos);
}

TEST(Report, TextAndJsonSayTheSame) {
  const Findings findings = {{"one", "a", "fine"},
                             {"one", "longer", "odd", Health::note, "look"},
                             {"two", "b", "bad \xff bytes", Health::problem, "mend it"}};
  EXPECT_EQ(as_text(findings),
            "one\n  a       fine\n  longer  odd\n            -> look\n\ntwo\n  b       PROBLEM: bad \xff bytes\n"
            "            -> mend it\n\n1 problem: a rank could not start here, or not as asked\n");
  const auto json = nlohmann::json::parse(as_json(findings, nullptr));
  EXPECT_FALSE(json.at("ok").get<bool>());
  EXPECT_EQ(json.at("problems"), 1);
  EXPECT_EQ(json.at("findings").at(1).at("health"), "note");
  EXPECT_EQ(json.at("findings").at(2).at("remedy"), "mend it");
  EXPECT_TRUE(json.at("probe").is_null());
  EXPECT_NE(as_text(Findings{{"one", "a", "fine"}}).find("a rank could start here"), std::string::npos);
}

TEST(Report, AnErrorsRemedyIsBehindItsFirstSemicolon) {
  const auto split = problem_of("s", "n", "x is wrong; set y; or z", "none");
  EXPECT_EQ(split.value, "x is wrong");
  EXPECT_EQ(split.remedy, "set y; or z");
  EXPECT_EQ(problem_of("s", "n", "x is wrong", "ask").remedy, "ask");
}

// The probe's output.

HelperResult said(const std::string& out) { return {.ending = ExitStatus{}, .out = out, .err = {}}; }

ProbeAnswer read_one(const HelperResult& result) { return read_probe("/x/lockstep-probe", result, 1500ms); }

nlohmann::json good_answer() {
  return {{"lockstep", LOCKSTEP_VERSION},
          {"backends", {{{"name", "shm"}, {"tried", true}, {"ranks_tried", 2}, {"reason", ""}}}},
          {"plugins", {{{"name", "cuda"}, {"path", ""}, {"usable", false}, {"reason", "no file"}}}},
          {"devices", {{{"name", "cpu"}}}},
          {"no_gpu", "there is no driver; install one"}};
}

TEST(Probe, AGoodAnswerBecomesFindings) {
  const auto answer = read_one(said(good_answer().dump()));
  EXPECT_EQ(count_problems(answer.findings), 0);
  EXPECT_EQ(named(answer.findings, "shm").value, "works, tried with 2 ranks");
  EXPECT_EQ(named(answer.findings, "cuda").value, "not here: no file");
  EXPECT_EQ(answer.json, good_answer());
}

TEST(Probe, ABackendThatFailsIsNotedAndNoneAtAllIsAProblem) {
  auto json = good_answer();
  json["backends"] = {{{"name", "single"}, {"tried", true}, {"ranks_tried", 1}, {"reason", ""}},
                      {{"name", "mpi"}, {"tried", false}, {"ranks_tried", 0}, {"reason", "needs mpirun"}},
                      {{"name", "shm"}, {"tried", true}, {"ranks_tried", 0}, {"reason", "memfd_create: refused"}}};
  const auto answer = read_one(said(json.dump()));
  EXPECT_EQ(named(answer.findings, "shm").health, Health::note);
  EXPECT_NE(named(answer.findings, "shm").value.find("memfd_create"), std::string::npos);
  EXPECT_EQ(named(answer.findings, "mpi").value, "not tried: needs mpirun");
  EXPECT_EQ(named(answer.findings, "mpi").health, Health::ok);
  EXPECT_EQ(named(answer.findings, "any").health, Health::problem);
}

void expect_problem(const ProbeAnswer& answer, const std::string& says) {
  ASSERT_EQ(answer.findings.size(), 1u);
  EXPECT_EQ(answer.findings[0].health, Health::problem);
  EXPECT_NE(answer.findings[0].remedy, "");
  EXPECT_NE(answer.findings[0].value.find(says), std::string::npos) << answer.findings[0].value;
  EXPECT_TRUE(answer.json.is_null());
}

TEST(Probe, NoAnswerACrashAndNonsenseAreProblems) {
  expect_problem(read_one({.ending = std::nullopt, .out = "half", .err = "loading\n"}),
                 "no answer within 1.5 s and was killed; it said: loading");
  expect_problem(read_one({.ending = ExitStatus{.by_signal = true, .value = 11}, .out = "", .err = ""}), "(SIGSEGV)");
  expect_problem(
      read_one({.ending = ExitStatus{.by_signal = false, .value = 127}, .out = "", .err = "liblockstep.so: no"}),
      "liblockstep.so: no");
  for (const auto* nonsense : {"", "hello", "[]", "3", "null", "{}", "{\"lockstep\":1}", "{\"lockstep\":"}) {
    expect_problem(read_one(said(nonsense)), "can't be used");
  }
  for (const auto* part : {"backends", "plugins", "devices"}) {
    for (const nlohmann::json& wrong :
         {nlohmann::json(), nlohmann::json(7), nlohmann::json({{"name", 1}}), nlohmann::json::array({1})}) {
      auto json = good_answer();
      json[part] = wrong;
      if (wrong.is_null() && std::string_view(part) != "backends") continue;  // null iterates as an empty list
      const auto answer = read_one(said(json.dump()));
      EXPECT_GE(count_problems(answer.findings), 1) << part << wrong;
    }
  }
}

TEST(Probe, AGpuOnWhichKernelsHangOrCrashHidesNothingElse) {
  const nlohmann::json good = {
      {"device", "cuda:0"}, {"tried", true}, {"operations", 49}, {"compared", 49}, {"reason", ""}};
  EXPECT_EQ(read_tensors(said(nlohmann::json{{"tensors", good}}.dump()), 1500ms), good);
  const auto reason = [](const HelperResult& result) {
    const auto tensors = read_tensors(result, 1500ms);
    EXPECT_EQ(tensors.at("device"), "cuda:0");
    EXPECT_EQ(tensors.at("tried"), true);
    EXPECT_EQ(tensors.at("compared"), 0);
    return tensors.at("reason").get<std::string>();
  };
  EXPECT_NE(reason({.ending = std::nullopt, .out = "", .err = ""}).find("within 1.5 s"), std::string::npos);
  const auto crash =
      reason({.ending = ExitStatus{.by_signal = true, .value = 11}, .out = "", .err = "comparing kernels\n"});
  EXPECT_NE(crash.find("(SIGSEGV): comparing kernels"), std::string::npos) << crash;
  for (const auto* nonsense : {"", "hello", "[]", "{}", "{\"tensors\":{}}"}) {
    EXPECT_NE(reason(said(nonsense)).find("can't be used"), std::string::npos) << nonsense;
  }
}

TEST(Probe, AnotherVersionsAnswerIsRefused) {
  auto json = good_answer();
  json["lockstep"] = "99.0";
  expect_problem(read_one(said(json.dump())), "version 99.0");
}

TEST(Probe, LongNonsenseIsCutAndStaysOneLine) {
  const auto answer = read_one(said("a\nb" + std::string(100000, 'x')));
  expect_problem(answer, "a bxxx");
  EXPECT_LT(answer.findings[0].value.size(), 400u);
  EXPECT_EQ(answer.findings[0].value.find('\n'), std::string::npos);
}

using GpuFindings = Folder;

TEST_F(GpuFindings, SayWhatTheDriverShowsAlsoWithoutAProbe) {
  const auto none = gpu_findings({.count = 0, .reason = "nothing here"}, path("version"), nullptr);
  EXPECT_EQ(named(none, "visible").value, "none: nothing here");
  EXPECT_NE(named(none, "driver").value.find(path("version")), std::string::npos);
  EXPECT_EQ(none.size(), 2u);
  write("version", "NVRM version: 550.1\nGCC version: 12\n");
  EXPECT_EQ(named(gpu_findings({.count = 2, .reason = {}}, path("version"), nullptr), "driver").value,
            "NVRM version: 550.1");
}

TEST_F(GpuFindings, GpusThatNoBackendUsesAreNoted) {
  const auto computes_on = [&](int gpus, const nlohmann::json& probe) {
    return named(gpu_findings({.count = gpus, .reason = "x"}, path("version"), probe), "a rank computes on");
  };
  EXPECT_EQ(computes_on(2, good_answer()).value, "cpu; no GPU: there is no driver");
  EXPECT_EQ(computes_on(2, good_answer()).health, Health::note);
  EXPECT_EQ(computes_on(2, good_answer()).remedy, "install one");
  EXPECT_EQ(computes_on(0, good_answer()).health, Health::ok);
  auto used = good_answer();
  used.erase("no_gpu");
  used["devices"].push_back({{"name", "cuda:0"},
                             {"gpu", "NVIDIA H200"},
                             {"uuid", "GPU-1"},
                             {"memory_bytes", std::uint64_t{141} << 30},
                             {"compute_capability", "9.0"},
                             {"driver_cuda_version", 12080},
                             {"runtime_cuda_version", 13000}});
  EXPECT_EQ(computes_on(2, used).health, Health::ok);
  EXPECT_EQ(read_one(said(used.dump())).json, used);
  EXPECT_EQ(named(gpu_findings({.count = 1, .reason = {}}, path("version"), used), "cuda:0").value,
            "NVIDIA H200, GPU-1, 141.0 GiB, compute capability 9.0; driver for CUDA 12.8, runtime 13.0");
  used["devices"][1].erase("memory_bytes");
  EXPECT_EQ(count_problems(read_one(said(used.dump())).findings), 1);
}

// Running it.

HelperResult shell(const std::string& script, std::chrono::milliseconds limit = 40s) {
  return run_helper({"/bin/sh", "-c", script}, Deadline::after(limit));
}

TEST(HelperProgram, GivesBothStreamsAndHowItEnded) {
  const auto result = shell("echo out; echo err >&2; read x || echo nothing to read; exit 3");
  ASSERT_TRUE(result.ending);
  EXPECT_EQ(result.ending->exit_code(), 3);
  EXPECT_EQ(result.out, "out\nnothing to read\n");
  EXPECT_EQ(result.err, "err\n");
}

TEST(HelperProgram, TheStoresSecretIsNotHandedOn) {
  ASSERT_EQ(setenv("LOCKSTEP_STORE_SECRET", "s1", 1), 0);
  ASSERT_EQ(setenv("LOCKSTEP_STORE_SECRET_FILE", "s2", 1), 0);
  ASSERT_EQ(setenv("LOCKSTEP_STORE", "s3", 1), 0);
  const auto result = shell("env | grep ^LOCKSTEP_STORE");
  unsetenv("LOCKSTEP_STORE_SECRET");
  unsetenv("LOCKSTEP_STORE_SECRET_FILE");
  unsetenv("LOCKSTEP_STORE");
  EXPECT_EQ(result.out, "LOCKSTEP_STORE=s3\n");
}

TEST(HelperProgram, OneThatHangsIsKilledWithWhatItStarted) {
  HelperResult result;
  for (auto limit = 200ms; result.out.empty(); limit *= 2) {  // until the machine is fast enough to get to the echo
    ASSERT_LT(limit, 40s);
    result = shell("sleep 3600 & echo $!; sleep 3600", limit);
    EXPECT_FALSE(result.ending);
  }
  const auto child = std::stoi(result.out);
  EXPECT_TRUE(testing::wait_until([&] {
    const auto entry = process_entry(child);
    return !entry || !entry->alive();
  }));
}

TEST(HelperProgram, AChildThatHoldsTheOutputIsNotWaitedFor) {
  const auto result = shell("sleep 3600 & echo done");
  ASSERT_TRUE(result.ending);
  EXPECT_TRUE(result.ending->ok());
  EXPECT_EQ(result.out, "done\n");
}

TEST(HelperProgram, OneThatBabblesIsCutOff) {
  const auto result =
      shell("while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done", 500ms);
  EXPECT_FALSE(result.ending);
  EXPECT_LE(result.out.size(), kMostOutput);
}

TEST(HelperProgram, OneThatIsNotThereIsAnError) {
  EXPECT_THROW(run_helper({"/no/such/program"}, Deadline::after(1s)), ExecError);
}

}  // namespace
}  // namespace lockstep::launcher::doctor::doctor_test
