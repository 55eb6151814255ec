// SPDX-License-Identifier: Apache-2.0
// What is made of the trials on several hosts, and the lines that they come in.
#include "launcher/doctor/examine_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "launcher/doctor/host_trial.h"

namespace lockstep::launcher::doctor::examine_hosts_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string line_of(const nlohmann::json& said) { return std::string(kTrialLine) + said.dump(); }

TriedHost tried(const std::string& name, const std::string& build) {
  TriedHost host{.name = name, .command = "ssh " + name + " lockstep agent"};
  const Findings here = {{"hosts", "", name + "-name, 10.0.0.1 (eth0)"}};
  const Findings others = {{"connections", " to the others", "0 of 1 reached"},
                           problem_of("connections", " to z", "10.0.0.9:7: refused", "open the port")};
  EXPECT_TRUE(read_trial(
      line_of({{"build", build}, {"address", "10.0.0.1"}, {"port", 4001}, {"findings", as_json(here)}}), host));
  EXPECT_FALSE(host.is_done);
  EXPECT_TRUE(read_trial(line_of({{"findings", as_json(others)}}), host));
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

TEST(TriedHosts, AreNamedIfTheyDidNotAnswerOrEndOrHaveAnotherBuild) {
  TriedHost silent{.name = "a", .command = "ssh a lockstep agent", .ending = "exited with code 255"};
  TriedHost first = tried("b", "0.2.0 x"), other = tried("c", "0.1.0 y");
  first.findings.clear();
  other.findings.clear();
  other.is_done = false;
  EXPECT_THAT(
      lines({silent, first, other}),
      ElementsAre(HasSubstr("a: `ssh a lockstep agent` exited with code 255 -> see what it wrote"),
                  "c: it has another lockstep than b: '0.1.0 y' and '0.2.0 x' -> install the same build on both",
                  HasSubstr("c: did not try all others within 60 s")));
}

TEST(TriedHosts, ShowTheUserWhatIsNotATrials) {
  TriedHost host;
  for (const std::string text : {"", "{", "7", "[]", "{}", R"({"findings": 7})", R"({"findings": [7]})"}) {
    EXPECT_FALSE(read_trial(std::string(kTrialLine) + text, host)) << text;
    EXPECT_FALSE(read_trial(text, host)) << text;
  }
}

}  // namespace
}  // namespace lockstep::launcher::doctor::examine_hosts_test
