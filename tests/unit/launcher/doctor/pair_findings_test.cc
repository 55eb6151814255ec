// SPDX-License-Identifier: Apache-2.0
// What is made of the trials on several hosts, and the lines that they come in.
#include "launcher/doctor/pair_findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::launcher::doctor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Outcome = TrialResult::Outcome;

TriedHost host(const std::string& name, const std::string& address, int port) {
  return {.name = name,
          .command = "ssh " + name + " lockstep agent",
          .facts = TrialHost{.name = name + "-name",
                             .build = "0.2.0 x",
                             .address = address,
                             .why = "eth0",
                             .port = port,
                             .token = "token of " + name},
          .is_done = true};
}

std::vector<TriedHost> two_hosts() { return {host("a", "10.0.0.1", 4001), host("b", "10.0.0.2", 4002)}; }

std::vector<std::string> problems_of(const std::vector<TriedHost>& hosts) {
  std::vector<std::string> texts;
  for (const Finding& finding : pair_findings(hosts, "60 s")) {
    if (finding.health == Health::problem) {
      texts.push_back(finding.name + ": " + finding.value + " -> " + finding.remedy);
    }
  }
  return texts;
}

TEST(TrialLines, TravelOnOneLine) {
  auto facts = *host("a", "10.0.0.1", 4001).facts;
  facts.problems = {"two\nlines \xff", "\"quoted\""};
  const std::string line = encode(facts);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto read = decode_trial_host(line);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->name, "a-name");
  EXPECT_EQ(read->build, "0.2.0 x");
  EXPECT_EQ(read->address, "10.0.0.1");
  EXPECT_EQ(read->why, "eth0");
  EXPECT_EQ(read->port, 4001);
  EXPECT_EQ(read->token, "token of a");
  ASSERT_EQ(read->problems.size(), 2u);
  EXPECT_EQ(read->problems[1], "\"quoted\"");
  const auto peer = decode_trial_peer(encode(TrialPeer{.node = 3, .address = "[::1]:7", .token = "t"}));
  ASSERT_TRUE(peer);
  EXPECT_EQ(peer->node, 3);
  EXPECT_EQ(peer->address, "[::1]:7");
  EXPECT_EQ(peer->token, "t");
  const auto result = decode_trial_result(encode(TrialResult{
      .node = 2, .address = "h:7", .outcome = Outcome::cut, .from = "10.0.0.9", .seconds = 0.25, .problem = "why"}));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->node, 2);
  EXPECT_EQ(result->address, "h:7");
  EXPECT_EQ(result->outcome, Outcome::cut);
  EXPECT_EQ(result->from, "10.0.0.9");
  EXPECT_EQ(result->seconds, 0.25);
  EXPECT_EQ(result->problem, "why");
}

TEST(TrialLines, OfAnythingElseNothingIsRead) {
  for (const std::string text : {"", "{", "7", "[]", "{}", R"({"node": "x"})"}) {
    EXPECT_FALSE(decode_trial_host(text)) << text;
    EXPECT_FALSE(decode_trial_peer(text)) << text;
    EXPECT_FALSE(decode_trial_result(text)) << text;
  }
  auto bad = encode(TrialResult{.node = 1});
  bad.replace(bad.find("\"outcome\":0"), 11, "\"outcome\":9");
  EXPECT_FALSE(decode_trial_result(bad));
}

TEST(Peers, AreTheOthersAndTheFirstHostByTheNameThatTheStoreHasToo) {
  const auto hosts = two_hosts();
  const auto of_b = peers_of(hosts, 1, "a:0");
  ASSERT_EQ(of_b.size(), 2u);
  EXPECT_EQ(of_b[0].address, "10.0.0.1:4001");
  EXPECT_EQ(of_b[1].address, "a:4001");
  EXPECT_EQ(of_b[1].token, "token of a");
  const auto of_a = peers_of(hosts, 0, "a:0");
  ASSERT_EQ(of_a.size(), 1u);
  EXPECT_EQ(of_a[0].address, "10.0.0.2:4002");
  auto silent = hosts;
  silent[1].facts.reset();
  EXPECT_THAT(peers_of(silent, 0, "a:0"), IsEmpty());
}

TEST(PairFindings, OfHostsThatReachEachOtherAreOnePerHost) {
  auto hosts = two_hosts();
  hosts[0].results = {{.node = 1, .address = "10.0.0.2:4002", .seconds = 0.0004}};
  hosts[1].results = {{.node = 0, .address = "10.0.0.1:4001", .seconds = 0.0002},
                      {.node = 0, .address = "a:4001", .seconds = 0.003}};
  const auto findings = pair_findings(hosts, "60 s");
  EXPECT_EQ(count_problems(findings), 0);
  ASSERT_EQ(findings.size(), 4u);
  EXPECT_EQ(findings[1].name + ": " + findings[1].value, "b: b-name, 10.0.0.2 (eth0)");
  EXPECT_EQ(findings[3].name + ": " + findings[3].value,
            "b to the others: 2 of 2 tried, the slowest 3.0 ms (a at a:4001)");
}

TEST(PairFindings, NameThePairTheAddressAndWhatCameOfIt) {
  auto hosts = two_hosts();
  hosts[0].results = {{.node = 1, .address = "10.0.0.2:4002", .outcome = Outcome::unreached, .problem = "refused"}};
  hosts[1].results = {
      {.node = 0, .address = "10.0.0.1:4001", .outcome = Outcome::cut, .from = "10.0.0.2", .problem = "timed out"},
      {.node = 0, .address = "a:4001", .outcome = Outcome::stranger, .from = "10.0.0.2", .problem = "somebody else"}};
  EXPECT_THAT(problems_of(hosts),
              ElementsAre(AllOf(HasSubstr("a to b: 10.0.0.2:4002: refused -> "), HasSubstr("LOCKSTEP_PORT_RANGE")),
                          AllOf(HasSubstr("b to a: 10.0.0.1:4001 from 10.0.0.2: timed out -> "), HasSubstr("MTU")),
                          AllOf(HasSubstr("b to a: a:4001 from 10.0.0.2: somebody else -> "),
                                HasSubstr("two hosts may have this address"))));
}

TEST(PairFindings, NameAHostThatDidNotAnswerOrHasAnotherBuildOrLacksSomething) {
  auto hosts = two_hosts();
  hosts[0].facts.reset();
  hosts[0].is_done = false;
  hosts[0].ending = "exited with code 255";
  hosts[1].facts->problems = {"program './train' was not found; give its path"};
  hosts.push_back(host("c", "10.0.0.3", 4003));
  hosts[2].facts->build = "0.1.0 y";
  hosts[2].is_done = false;
  EXPECT_THAT(
      problems_of(hosts),
      ElementsAre(HasSubstr("a: `ssh a lockstep agent` exited with code 255 -> see what it wrote"),
                  "b: program './train' was not found -> give its path",
                  "c: it has another lockstep than b-name: '0.1.0 y' and '0.2.0 x' -> install the same build on both",
                  HasSubstr("c: did not try all others within 60 s")));
}

}  // namespace
}  // namespace lockstep::launcher::doctor
