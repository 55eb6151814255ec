// SPDX-License-Identifier: Apache-2.0
// The doctor's parts: what is made of files, of the probe's output, of an error's message, of trials on several hosts.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "launcher/doctor/examine_hosts.h"
#include "launcher/doctor/finding.h"
#include "launcher/doctor/gpu_findings.h"
#include "launcher/doctor/gpu_trial.h"
#include "launcher/doctor/host_findings.h"
#include "launcher/doctor/host_trial.h"
#include "launcher/doctor/probe_findings.h"
#include "launcher/doctor/variable_findings.h"
#include "launcher/process/helper_program.h"
#include "launcher/process/process_table.h"
#include "launcher/process/spawn.h"
#include "runtime/base/record.h"
#include "runtime/base/unique_fd.h"
#include "tests/support/messages.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/wait_until.h"

namespace lockstep::launcher::doctor::doctor_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

// Without the words of the JSON library, which has several versions, and our own version.
void expect_page(const char* what, const std::string& text, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
  static const std::regex words(R"(\[json\.exception[^"\n-]*)"), version(LOCKSTEP_VERSION);
  lockstep::testing::expect_message(
      "launcher", what, std::regex_replace(std::regex_replace(text, words, "[json] "), version, "VERSION"), file, line);
}

// A line of each finding, or of those of a name.
std::string lines_of(const Findings& findings, const std::string& name = "") {
  std::string text;
  for (const Finding& finding : findings) {
    if (!name.empty() && finding.name != name) continue;
    const char* const health = finding.health == Health::ok     ? "ok"
                               : finding.health == Health::note ? "note"
                                                                : "PROBLEM";
    text += fmt::format("{}: {}: {}: {}{}{}\n", health, finding.section, finding.name, finding.value,
                        finding.remedy.empty() ? "" : " -> ", finding.remedy);
  }
  return text;
}

TEST(HostFindings, ReadTheFilesTheyAreTold) {
  const lockstep::testing::TemporaryFolder root;
  root.write("proc/self/cgroup", "0::/job\n");
  root.write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable:   1048576 kB\n");
  root.write("proc/sys/net/ipv4/ip_local_port_range", "40000\t40010\n");
  root.write("cgroup/job/cpu.max", "150000 100000\n");
  std::string page;
  for (const char* const limit : {"67108864\n", "1048576\n"}) {
    root.write("cgroup/job/memory.max", limit);
    page += lines_of(host_findings({.proc = root / "proc", .cgroup = root / "cgroup"}), "memory");
  }
  const auto findings = host_findings({.proc = root / "proc", .cgroup = root / "cgroup"});
  expect_page("memory and ports", page + lines_of(findings, "free ports are from"));
  EXPECT_NE(lines_of(findings, "cores").find("cgroup quota 1.5"), std::string::npos);
}

TEST(VariableFindings, ShowWhatIsSetAndNoteWhatNothingReads) {
  const Environment environment({{"LOCKSTEP_TIMOUT", "30"},
                                 {"LOCKSTEP_LIVENESS", "o\nff"},
                                 {"LOCKSTEP_STORE_SECRET", "a secret"},
                                 {"LOCKSTEP_STORE", ""},
                                 {"LOCKSTEP_TCP_CONGESTION", "system"},  // of an older lockstep
                                 {"PATH", "/bin"}});
  expect_page("odd ones", lines_of(variable_findings(environment)));
  expect_page("none", lines_of(variable_findings({})));
  Environment wrong;
  wrong.set("LOCKSTEP_PORT_RANGE", "7");
  const auto findings = variable_findings(wrong);
  EXPECT_EQ(count_problems(findings), 1);
  expect_page("no range of ports", lines_of(findings));
}

TEST(Report, TextAndJsonSayTheSame) {
  const Findings findings = {{"one", "a", "fine"},
                             {"one", "longer", "odd", Health::note, "look"},
                             {"two", "b", "bad \xff bytes", Health::problem, "mend it"}};
  EXPECT_EQ(as_text(findings),
            "one\n  a       fine\n  longer  odd\n            -> look\n\ntwo\n  b       PROBLEM: bad \xff bytes\n"
            "            -> mend it\n\n1 problem: a rank could not start here, or not as asked\n");
  expect_page("json", as_json(findings, nullptr));
  EXPECT_NE(as_text(Findings{{"one", "a", "fine"}}).find("a rank could start here"), std::string::npos);
}

TEST(Report, AnErrorsRemedyIsBehindItsFirstSemicolon) {
  EXPECT_EQ(
      lines_of({problem_of("s", "n", "x is wrong; set y; or z", "none"), problem_of("s", "n", "x is wrong", "ask")}),
      "PROBLEM: s: n: x is wrong -> set y; or z\nPROBLEM: s: n: x is wrong -> ask\n");
}

// The probe's output.

HelperResult said(const std::string& out) { return {.ending = ExitStatus{}, .out = out, .err = {}}; }
HelperResult ended_by(int signal, const std::string& out, const std::string& err = "its\nlast words") {
  return {.ending = ExitStatus{.by_signal = signal != 0, .value = signal}, .out = out, .err = err};
}

ProbeAnswer read_one(const HelperResult& result) { return read_probe("/x/lockstep-probe", result, 1500ms); }

json good_answer() {
  return {{"lockstep", LOCKSTEP_VERSION},
          {"backends", {{{"name", "shm"}, {"tried", true}, {"ranks_tried", 2}, {"reason", ""}}}},
          {"plugins", {{{"name", "cuda"}, {"path", ""}, {"usable", false}, {"reason", "no file"}}}},
          {"devices", {{{"name", "cpu"}}}},
          {"no_gpu", "there is no driver; install one"}};
}

TEST(Probe, AnAnswerBecomesFindings) {
  const auto answer = read_one(said(good_answer().dump()));
  EXPECT_EQ(answer.json, good_answer());
  EXPECT_EQ(count_problems(answer.findings), 0);
  auto none = good_answer();
  none["backends"] = {{{"name", "single"}, {"tried", true}, {"ranks_tried", 1}, {"reason", ""}},
                      {{"name", "mpi"}, {"tried", false}, {"ranks_tried", 0}, {"reason", "needs mpirun"}},
                      {{"name", "shm"}, {"tried", true}, {"ranks_tried", 0}, {"reason", "memfd_create: refused"}}};
  expect_page("good", lines_of(answer.findings));
  expect_page("no backend for several ranks", lines_of(read_one(said(none.dump())).findings));
}

std::string problem(const HelperResult& result) {
  const ProbeAnswer answer = read_one(result);
  EXPECT_EQ(answer.findings.size(), 1u);
  EXPECT_TRUE(answer.json.is_null());
  const std::string line = lines_of(answer.findings);
  EXPECT_TRUE(line.starts_with("PROBLEM") && line.find(" -> ") != line.npos) << line;
  return line;
}

TEST(Probe, NoAnswerACrashAndNonsenseAreProblems) {
  auto other = good_answer();
  other["lockstep"] = "99.0";
  expect_page("problems", problem({.ending = std::nullopt, .out = "half", .err = "loading\n"}) +
                              problem(ended_by(11, "", "")) +
                              problem({.ending = ExitStatus{.value = 127}, .out = "", .err = "liblockstep.so: no"}) +
                              problem(said("")) + problem(said(other.dump())) +
                              problem(said("a\nb" + std::string(100000, 'x'))));  // is cut, and one line
  for (const auto* nonsense : {"hello", "[]", "3", "null", "{}", "{\"lockstep\":1}", "{\"lockstep\":"}) {
    EXPECT_NE(problem(said(nonsense)).find("can't be used"), std::string::npos) << nonsense;
  }
  for (const auto* part : {"backends", "plugins", "devices"}) {
    for (const json& wrong : {json(), json(7), json({{"name", 1}}), json::array({1})}) {
      auto bad = good_answer();
      bad[part] = wrong;
      if (wrong.is_null() && std::string_view(part) != "backends") continue;  // null iterates as an empty list
      EXPECT_GE(count_problems(read_one(said(bad.dump())).findings), 1) << part << wrong;
    }
  }
}

TEST(Probe, AGpuOnWhichKernelsHangOrCrashHidesNothingElse) {
  const json good = {{"device", "cuda:0"}, {"tried", true}, {"operations", 49}, {"compared", 49}, {"reason", ""}};
  EXPECT_EQ(read_tensors(said(json{{"tensors", good}}.dump()), 1500ms), good);
  std::string page;
  for (const auto& result : {HelperResult{}, ended_by(11, "", "comparing kernels\n"), said(""), said("hello"),
                             said("[]"), said("{}"), said("{\"tensors\":{}}")}) {
    page += read_tensors(result, 1500ms).dump() + "\n";
  }
  expect_page("bad answers", page);
}

TEST(GpuFindings, SayWhatTheDriverShowsAlsoWithoutAProbeAndNoteGpusThatNoBackendUses) {
  const lockstep::testing::TemporaryFolder root;
  const std::string version = root / "version";
  expect_page("no driver", lines_of(gpu_findings({.count = 0, .reason = "nothing here"}, version, nullptr)));
  root.write("version", "NVRM version: 550.1\nGCC version: 12\n");
  std::string page = lines_of(gpu_findings({.count = 2, .reason = {}}, version, nullptr));
  for (const int gpus : {2, 0}) page += lines_of(gpu_findings({.count = gpus, .reason = "x"}, version, good_answer()));
  auto used = good_answer();
  used.erase("no_gpu");
  used["devices"].push_back({{"name", "cuda:0"},
                             {"gpu", "NVIDIA H200"},
                             {"uuid", "GPU-1"},
                             {"memory_bytes", std::uint64_t{141} << 30},
                             {"compute_capability", "9.0"},
                             {"driver_cuda_version", 12080},
                             {"runtime_cuda_version", 13000}});
  EXPECT_EQ(read_one(said(used.dump())).json, used);
  expect_page("a driver", page + lines_of(gpu_findings({.count = 2, .reason = {}}, version, used)));
  used["devices"][1].erase("memory_bytes");
  EXPECT_EQ(count_problems(read_one(said(used.dump())).findings), 1);
}

// What the ranks of a job on GPUs have written; launch_test.cc of tests/unit/cuda runs it.

TEST(GpuTrial, ReadsTheObjectsOfRanks) {
  const auto job = read_gpu_job(ended_by(SIGKILL,
                                         "[rank 0] n1:7:9 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n"
                                         "[rank 0] {\"what\": \"sums\", \"rank\": 0}\n[rank 0] {\"what\": \n"
                                         "[rank 0] {}\n[n2] [rank 1] {\"what\": \"sums\", \"rank\": 1}\n"
                                         "[rank 0] {\"what\": \"death\", \"rank\": 0}"));
  EXPECT_EQ(job.at("said"), json::parse(R"([{"what": "sums", "rank": 0}, {"what": "sums", "rank": 1},
                                            {"what": "death", "rank": 0}])"));
  EXPECT_EQ(job.at("problem"), "") << "its last rank was to be killed";
  expect_page("a crash", read_gpu_job(ended_by(SIGKILL, "")).at("problem"));
  expect_page("no end", read_gpu_job({.ending = {}, .out = {}, .err = {}}).at("problem"));
}

TEST(GpuTrial, NamesTheGpuWithAWrongSumAndTheRankThatCouldNotContinueOrWasNotNamed) {
  const auto sums = [](int rank, double seconds, const std::string& wrong) -> json {
    return {{"what", "sums"}, {"rank", rank}, {"bytes", 64 << 20}, {"seconds", seconds}, {"wrong", wrong}};
  };
  const auto of_three = [](const std::vector<json>& more) {
    json all = json::array();
    for (int rank = 0; rank < 3; ++rank) {
      all.push_back({{"what", "rank"}, {"rank", rank}, {"host", "n1"}, {"gpu", "Fake"}, {"uuid", ""}});
    }
    for (const json& each : more) all.push_back(each);
    return lines_of(gpu_trial_findings({{"said", all}, {"problem", ""}}));
  };
  // As nccl-tests counts: 64 MiB / 2 ms, the slowest rank's time, are 33.6 GB/s, and busbw is that times 2(n-1)/n.
  expect_page("right sums",
              of_three({sums(0, 0.001, ""),
                        sums(1, 0.002, ""),
                        {{"what", "death"}, {"rank", 0}, {"named", 2}, {"seconds", 0.2}, {"text", "x"}},
                        {{"what", "death"}, {"rank", 1}, {"named", 0}, {"seconds", 1.5}, {"text", "rank 0"}}}));
  expect_page("wrong sums",
              of_three({sums(0, 1, ""), sums(1, 1, "7"), {{"what", "failed"}, {"rank", 2}, {"error", "no more"}}}));
  expect_page("nonsense", lines_of(gpu_trial_findings({{"said", {1}}})));
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
  const auto names = {"LOCKSTEP_STORE_SECRET", "LOCKSTEP_STORE_SECRET_FILE", "LOCKSTEP_STORE"};
  for (const char* const name : names) ASSERT_EQ(setenv(name, "s3", 1), 0);
  const auto result = shell("env | grep ^LOCKSTEP_STORE");
  for (const char* const name : names) unsetenv(name);
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

// What is made of the trials on several hosts, and the lines that they come in.

using lockstep::testing::expect_message;

std::string line_of(const TrialAnswer& said) {
  return std::string(kTrialLine) + escaped(write_record(said, TrialAnswer::kFields));
}

TriedHost tried(const std::string& name, const std::string& build) {
  TriedHost host{.name = name, .command = "ssh " + name + " lockstep agent"};
  const Findings here = {{"hosts", "", name + "-name, 10.0.0.1 (eth0)"}};
  const Findings others = {{"connections", " to the others", "0 of 1 reached"},
                           problem_of("connections", " to z", "10.0.0.9:7: refused", "open the port")};
  EXPECT_TRUE(read_trial(line_of({.build = build, .address = "10.0.0.1", .port = 4001, .findings = here}), host));
  EXPECT_FALSE(host.is_done);
  EXPECT_TRUE(read_trial(line_of({.findings = others}), host));
  EXPECT_TRUE(host.is_done);
  return host;
}

TEST(TriedHosts, SayHowTheyAreAndWhomTheyReachOrThatTheyDidNotAnswerOrEndOrHaveAnotherBuild) {
  expect_message("launcher", "two hosts", lines_of(findings_of({tried("a", "x"), tried("b", "x")}, "60 s")));
  TriedHost silent{.name = "a", .command = "ssh a lockstep agent", .ending = "exited with code 255"};
  TriedHost first = tried("b", "0.2.0 x"), other = tried("c", "0.1.0 y");
  first.findings.clear();
  other.findings.clear();
  other.is_done = false;
  expect_message("launcher", "problems", lines_of(findings_of({silent, first, other}, "60 s")));
}

// One line names all 400 other hosts.
TEST(HostTrial, TakesThePeersOfALargeJob) {
  std::vector<Peer> peers;
  for (int node = 1; node <= 400; ++node) {
    peers.push_back({node, fmt::format("node{:03}.cluster.example.org", node), "no port"});
  }
  const std::string words = encode(AgentStart{.secret = std::string(64, 'a'), .endpoint = "127.0.0.1:1"}) +
                            std::string(kPeersLine) + escaped(write_records(peers, Peer::kFields)) + "\n";
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  ASSERT_EQ(write(ends[1], words.data(), words.size()), static_cast<ssize_t>(words.size()));
  close(ends[1]);
  const UniqueFd terminal(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0));
  dup2(ends[0], STDIN_FILENO);
  close(ends[0]);
  ::testing::internal::CaptureStderr();
  AgentInput input;
  const int code = run_host_trial(input);
  const std::string said = ::testing::internal::GetCapturedStderr();
  dup2(terminal.get(), STDIN_FILENO);
  EXPECT_EQ(code, 0);
  EXPECT_NE(said.find("0 of 400 reached"), std::string::npos) << said;
}

TEST(TriedHosts, ShowTheUserWhatIsNotATrials) {
  TriedHost host;
  const std::string answer = line_of({.build = "x", .port = 1, .findings = {{"a", "b", "c"}}});
  for (const std::string& text :
       {std::string(), std::string("7"), std::string("build x\\n"), line_of({}).substr(kTrialLine.size()),
        answer.substr(kTrialLine.size(), answer.size() - kTrialLine.size() - 2)}) {
    EXPECT_FALSE(read_trial(std::string(kTrialLine) + text, host)) << text;
    EXPECT_FALSE(read_trial(text, host)) << text;
  }
}

}  // namespace
}  // namespace lockstep::launcher::doctor::doctor_test
