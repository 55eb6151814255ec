// SPDX-License-Identifier: Apache-2.0
// What is made of the trials on several hosts, and the lines that they come in.
#include "launcher/doctor/examine_hosts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "launcher/doctor/host_trial.h"
#include "runtime/base/record.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::launcher::doctor::examine_hosts_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

std::vector<std::string> lines(const std::vector<TriedHost>& hosts) {
  std::vector<std::string> texts;
  for (const Finding& finding : findings_of(hosts, "60 s")) {
    texts.push_back(finding.name + ": " + finding.value + (finding.health == Health::problem ? " -> " : "") +
                    finding.remedy);
  }
  return texts;
}

TEST(TriedHosts, SayHowTheyAreAndThenWhomTheyReach) {
  EXPECT_THAT(lines({tried("a", "x"), tried("b", "x")}),
              ElementsAre("a: a-name, 10.0.0.1 (eth0)", "b: b-name, 10.0.0.1 (eth0)", "a to the others: 0 of 1 reached",
                          "a to z: 10.0.0.9:7: refused -> open the port", "b to the others: 0 of 1 reached",
                          "b to z: 10.0.0.9:7: refused -> open the port"));
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
  EXPECT_THAT(said, HasSubstr("0 of 400 reached"));
}

TEST(TriedHosts, AreNamedIfTheyDidNotAnswerOrEndOrHaveAnotherBuild) {
  TriedHost silent{.name = "a", .command = "ssh a lockstep agent", .ending = "exited with code 255"};
  TriedHost first = tried("b", "0.2.0 x"), other = tried("c", "0.1.0 y");
  first.findings.clear();
  other.findings.clear();
  other.is_done = false;
  EXPECT_THAT(
      lines({silent, first, other}),
      ElementsAre(
          HasSubstr("a: `ssh a lockstep agent` exited with code 255 -> look at what this command wrote"),
          "c: this host has another lockstep than b: '0.1.0 y' and '0.2.0 x' -> install the same build on both hosts",
          HasSubstr("c: did not try all others within 60 s")));
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
}  // namespace lockstep::launcher::doctor::examine_hosts_test
