// SPDX-License-Identifier: Apache-2.0
// Which hosts take part in which start of a job, and what follows from what they tell each other before it.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>

#include "launcher/base/exit_codes.h"
#include "launcher/hosts/host_facts.h"
#include "launcher/hosts/host_meeting.h"
#include "tests/support/messages.h"

namespace lockstep::launcher::host_meeting_test {
namespace {

HostFacts host(char name, int node = -1) {
  return {.agent = name - 'a', .node = node, .name = std::string(1, name), .ranks = 2};
}

// Events, with blanks between them: "a" host a joins the start that is next, "a0" as one that has just come, "a@2" with
// node rank 2; "-a" leaves, "!a" is left out; "begin" with the hosts that are there; "more": the next start needs
// another host. Behind them what is asked:
//   "ab+" these hosts, complete; "ab~" complete if nobody else is waited for; "?" not even then, and "?1" one is
//   missing "new" and "full": there is a newcomer, or none
void expect_meeting(HostMeeting& meeting, const std::string& line) {
  std::istringstream events(line);
  for (std::string event; events >> event;) {
    SCOPED_TRACE(event + " of: " + line);
    const int start = meeting.start();
    if (event == "begin") {
      meeting.begin(plan_job({}, meeting.hosts()).hosts);
    } else if (event == "more") {
      meeting.await_newcomer();
    } else if (event == "new" || event == "full") {
      EXPECT_EQ(meeting.has_newcomer(), event == "new");
    } else if (event.front() == '?') {
      EXPECT_FALSE(meeting.is_complete(true));
      EXPECT_EQ(event.size() > 1 ? meeting.missing() : 0, event.size() > 1 ? event[1] - '0' : 0);
    } else if (event.back() == '+' || event.back() == '~') {
      std::string names;
      for (const HostFacts& one : meeting.hosts()) names += one.name;
      EXPECT_EQ(names + event.back(), event);
      EXPECT_EQ(meeting.is_complete(false), event.back() == '+');
      EXPECT_TRUE(meeting.is_complete(true));
      EXPECT_EQ(meeting.missing(), 0);
    } else if (event.front() == '-') {
      meeting.host_left(event[1] - 'a');
    } else if (event.front() == '!') {
      meeting.exclude_host(event[1] - 'a', event.substr(1));
    } else if (event.size() == 3) {
      meeting.host_joined(host(event[0], event[2] - '0'), start);
    } else {
      meeting.host_joined(host(event[0]), event.size() == 2 ? 0 : start);
    }
  }
}
void expect_meeting(int least, int most, const std::string& line) {
  HostMeeting meeting(least, most);
  expect_meeting(meeting, line);
}

TEST(HostMeeting, WaitsForAllHostsOrForTheLeast) {
  expect_meeting(3, 3, "a c ? b abc+");
  expect_meeting(3, 3, "a@0 b@2 c acb+");               // a node rank that was given is kept
  expect_meeting(2, 4, "a ? b ab~ c d abcd+ e abcd+");  // a fifth waits
  expect_meeting(1, 2, "a -b b a~");                    // word of a host that has gone comes too late
}

TEST(HostMeeting, KnowsWhetherTheLeastAreThere) {
  HostMeeting meeting(2, 4);
  expect_meeting(meeting, "a");
  EXPECT_FALSE(meeting.has_least());
  expect_meeting(meeting, "b");
  EXPECT_TRUE(meeting.has_least());
}

TEST(HostMeeting, TheNextStartHasTheHostsOfTheLastThatAreThereIfTheySuffice) {
  HostMeeting meeting(2, 3);
  // What they said was of the first start.
  expect_meeting(meeting, "a b c begin ? -b a ? c ac+");
  EXPECT_EQ(meeting.start(), 1);
  EXPECT_EQ(meeting.hosts()[1].node, 1);
  // b has not gone; then half of the last start suffice; then a new one will do.
  expect_meeting(2, 4, "a b c d begin -c -d a ? b ab+ begin -b a ?1 e0 ae+");
  expect_meeting(1, 2, "a b begin -b a a+");
  // A fixed number waits for another host in the place of the lost.
  expect_meeting(2, 2, "a b begin -b a ?1 c0 ac+");
}

TEST(HostMeeting, AStartThatNeedsAnotherHostWaitsForOneOnce) {
  expect_meeting(2, 3, "a b begin more a b ?1 c0 abc+ begin a b c abc+");
}

TEST(HostMeeting, AHostThatComesWhileTheRanksRunIsANewcomerIfThereIsRoom) {
  expect_meeting(1, 2, "a begin full b0 new -b full c0 a ac+ begin d0 full");
}

TEST(HostMeeting, AHostThatIsLeftOutIsNotWaitedForNorMissedNorTakenInAgain) {
  HostMeeting meeting(1, 2);
  expect_meeting(meeting, "a b begin !b a b");
  auto again = host('c');
  again.name = "b";
  meeting.host_joined(again, 0);
  expect_meeting(meeting, "a+");
  EXPECT_EQ(meeting.left_out(), std::set<std::string>{"b"});
  expect_meeting(meeting, "begin full d0 new");
}

// What follows from what hosts tell each other before the start: ranks, or a sentence for each host that can't. How it
// travels is agent_message_test.cc's.

using lockstep::testing::expect_message;

HostFacts facts_of(int node, int ranks) {
  return {.agent = 10 + node,
          .node = node,
          .name = std::string(1, static_cast<char>('a' + node)),
          .pid = 100 + node,
          .build = "0.2.0 x",
          .least = 3,
          .nodes = 3,
          .ranks = ranks};
}

std::vector<HostFacts> three_hosts() { return {facts_of(0, 2), facts_of(1, 1), facts_of(2, 4)}; }

void expect_problems(const char* what, const JobPlan& plan, int exit_code) {
  EXPECT_EQ(plan.exit_code, exit_code);
  expect_message("launcher", what, fmt::format("{}", fmt::join(plan.problems, "\n")));
}

TEST(JobPlan, GivesEachHostConsecutiveRanksByItsOwnNumber) {
  const auto plan = plan_job({.run_id = "run-1", .master_addr = "a", .master_port = 7}, three_hosts());
  EXPECT_EQ(plan.exit_code, 0);
  EXPECT_EQ(world_size(plan.hosts), 7);
  EXPECT_EQ(plan.hosts[0].first_rank, 0);
  EXPECT_EQ(plan.hosts[1].first_rank, 2);
  EXPECT_EQ(plan.hosts[2].first_rank, 3);
  for (int rank = 0; rank < 7; ++rank) EXPECT_EQ(node_of(plan.hosts, rank), rank < 2 ? 0 : rank < 3 ? 1 : 2) << rank;
  EXPECT_EQ(node_of(plan.hosts, 7), -1);
  EXPECT_EQ(describe_host(plan.hosts, 1), "host b (node rank 1)");
}

TEST(JobPlan, NamesEachHostThatCannotBeginWithTheFirstOnesExitCode) {
  auto hosts = three_hosts();
  hosts[1].problem = "./train: no such\nfile";
  hosts[1].exit_code = 127;
  hosts[2].problem = "no GPU here";
  hosts[2].exit_code = 2;
  expect_problems("problems", plan_job({}, hosts), 127);
  hosts = three_hosts();
  hosts[1].build = "0.1.0 y";
  hosts[2].least = hosts[2].nodes = 4;
  expect_problems("another build, other numbers of hosts", plan_job({}, hosts), kExitUsage);
}

TEST(JobPlan, GivesNodeRanksToWhoHasNoneAndNamesTwoThatHaveTheSame) {
  std::vector<HostFacts> hosts = {facts_of(0, 1), facts_of(1, 1), facts_of(2, 1)};
  hosts[0].node = -1;
  hosts[1].node = 2;
  hosts[2].node = -1;
  give_node_ranks(hosts, true);
  for (int node = 0; node < 3; ++node) {
    EXPECT_EQ(hosts[static_cast<std::size_t>(node)].name, std::string(1, "acb"[node]));
    EXPECT_EQ(hosts[static_cast<std::size_t>(node)].node, node);
  }
  hosts[0].node = 2;
  give_node_ranks(hosts, true);
  expect_problems("problems", plan_job({}, hosts), kExitUsage);
}

TEST(JobPlan, SaysWhoCameAndWhoIsMissing) {
  const std::vector<HostFacts> came = {facts_of(0, 2), facts_of(2, 1)};
  expect_problems("the first start", plan_without(came, 3, "5.0 s of 5.0 s allowed"), kExitInternal);
  // At a later one hosts are numbered anew, so that "node rank 1" would be who came.
  expect_problems("a later start", plan_without(came, 3, "5.0 s of 5.0 s", "host b (node rank 1)"), kExitInternal);
}

}  // namespace
}  // namespace lockstep::launcher::host_meeting_test
