// SPDX-License-Identifier: Apache-2.0
// What is made of the trials on several hosts, and the lines that they come in.
#include "launcher/doctor/examine_hosts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "launcher/doctor/host_trial.h"
#include "runtime/base/record.h"
#include "runtime/base/unique_fd.h"
#include "tests/support/messages.h"

namespace lockstep::launcher::doctor::examine_hosts_test {
namespace {

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

std::string lines(const std::vector<TriedHost>& hosts) {
  std::string text;
  for (const Finding& finding : findings_of(hosts, "60 s")) {
    text +=
        finding.name + ": " + finding.value + (finding.health == Health::problem ? " -> " : "") + finding.remedy + "\n";
  }
  return text;
}

TEST(TriedHosts, SayHowTheyAreAndWhomTheyReachOrThatTheyDidNotAnswerOrEndOrHaveAnotherBuild) {
  expect_message("launcher", "two hosts", lines({tried("a", "x"), tried("b", "x")}));
  TriedHost silent{.name = "a", .command = "ssh a lockstep agent", .ending = "exited with code 255"};
  TriedHost first = tried("b", "0.2.0 x"), other = tried("c", "0.1.0 y");
  first.findings.clear();
  other.findings.clear();
  other.is_done = false;
  expect_message("launcher", "problems", lines({silent, first, other}));
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
}  // namespace lockstep::launcher::doctor::examine_hosts_test
