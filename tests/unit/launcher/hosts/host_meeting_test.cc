// SPDX-License-Identifier: Apache-2.0
// Who takes part in which start of a job's ranks.
#include "launcher/hosts/host_meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::launcher::host_meeting_test {
namespace {

using ::testing::ElementsAre;

HostFacts host(int agent, int node = -1) {
  return {.agent = agent, .node = node, .name = std::string(1, static_cast<char>('a' + agent)), .ranks = 2};
}

std::vector<std::string> names(const HostMeeting& meeting) {
  std::vector<std::string> names;
  for (const HostFacts& host : meeting.hosts()) names.push_back(host.name);
  return names;
}

// The next start has the hosts that are there.
void begin(HostMeeting& meeting) { meeting.begin(plan_job({}, meeting.hosts()).hosts); }

TEST(HostMeeting, AJobOfThreeHostsWaitsForAll) {
  HostMeeting meeting(3, 3);
  meeting.host_joined(host(0), 0);
  meeting.host_joined(host(2), 0);
  EXPECT_FALSE(meeting.is_complete(true));
  meeting.host_joined(host(1), 0);
  EXPECT_TRUE(meeting.is_complete(false));
  EXPECT_THAT(names(meeting), ElementsAre("a", "b", "c"));
}

TEST(HostMeeting, ANodeRankThatWasGivenIsKept) {
  HostMeeting meeting(3, 3);
  meeting.host_joined(host(0, 0), 0);
  meeting.host_joined(host(1, 2), 0);
  meeting.host_joined(host(2), 0);
  EXPECT_THAT(names(meeting), ElementsAre("a", "c", "b"));
}

TEST(HostMeeting, WhereTwoToFourMayComeTwoAreEnoughOnceMoreHaveBeenWaitedFor) {
  HostMeeting meeting(2, 4);
  meeting.host_joined(host(0), 0);
  EXPECT_FALSE(meeting.has_least());
  EXPECT_FALSE(meeting.is_complete(true));
  meeting.host_joined(host(1), 0);
  EXPECT_TRUE(meeting.has_least());
  EXPECT_FALSE(meeting.is_complete(false));
  EXPECT_TRUE(meeting.is_complete(true));
  meeting.host_joined(host(2), 0);
  meeting.host_joined(host(3), 0);
  EXPECT_TRUE(meeting.is_complete(false));
  meeting.host_joined(host(4), 0);
  EXPECT_THAT(names(meeting), ElementsAre("a", "b", "c", "d")) << "a fifth waits";
}

TEST(HostMeeting, TheNextStartWaitsForTheHostsOfTheLastThatAreThere) {
  HostMeeting meeting(2, 3);
  for (const int agent : {0, 1, 2}) meeting.host_joined(host(agent), 0);
  begin(meeting);
  EXPECT_EQ(meeting.start(), 1);
  EXPECT_FALSE(meeting.is_complete(true)) << "what they said was of the first start";
  meeting.host_left(1);
  meeting.host_joined(host(0), 1);
  EXPECT_FALSE(meeting.is_complete(true));
  meeting.host_joined(host(2), 1);
  EXPECT_TRUE(meeting.is_complete(false));
  EXPECT_THAT(names(meeting), ElementsAre("a", "c"));
  EXPECT_EQ(meeting.hosts()[1].node, 1);
}

TEST(HostMeeting, AStartThatNeedsAnotherHostWaitsForOne) {
  HostMeeting meeting(2, 3);
  for (const int agent : {0, 1}) meeting.host_joined(host(agent), 0);
  begin(meeting);
  meeting.await_newcomer();
  for (const int agent : {0, 1}) meeting.host_joined(host(agent), 1);
  EXPECT_FALSE(meeting.is_complete(true));
  EXPECT_EQ(meeting.missing(), 1);
  meeting.host_joined(host(2), 0);
  EXPECT_TRUE(meeting.is_complete(false));
  EXPECT_EQ(meeting.missing(), 0);
  begin(meeting);
  for (const int agent : {0, 1, 2}) meeting.host_joined(host(agent), 2);
  EXPECT_TRUE(meeting.is_complete(false)) << "once";
}

TEST(HostMeeting, TheLeastOfTheLastStartIsEnoughAndOneHostLessIsNot) {
  HostMeeting meeting(2, 4);
  for (const int agent : {0, 1, 2, 3}) meeting.host_joined(host(agent), 0);
  begin(meeting);
  meeting.host_left(2);
  meeting.host_left(3);
  meeting.host_joined(host(0), 1);
  EXPECT_FALSE(meeting.is_complete(true)) << "b has not gone";
  meeting.host_joined(host(1), 1);
  EXPECT_TRUE(meeting.is_complete(false)) << "half of the last start";
  EXPECT_EQ(meeting.missing(), 0);
  begin(meeting);
  meeting.host_left(1);
  meeting.host_joined(host(0), 2);
  EXPECT_FALSE(meeting.is_complete(true));
  EXPECT_EQ(meeting.missing(), 1);
  meeting.host_joined(host(4), 0);
  EXPECT_TRUE(meeting.is_complete(false)) << "a new one will do";
  EXPECT_THAT(names(meeting), ElementsAre("a", "e"));
}

TEST(HostMeeting, WhereOneHostMayDoTheLastOneOfTwoIsEnough) {
  HostMeeting meeting(1, 2);
  for (const int agent : {0, 1}) meeting.host_joined(host(agent), 0);
  begin(meeting);
  meeting.host_left(1);
  meeting.host_joined(host(0), 1);
  EXPECT_TRUE(meeting.is_complete(false));
  EXPECT_THAT(names(meeting), ElementsAre("a"));
}

TEST(HostMeeting, AJobOfAFixedNumberWaitsForAnotherHostInThePlaceOfTheLost) {
  HostMeeting meeting(2, 2);
  meeting.host_joined(host(0), 0);
  meeting.host_joined(host(1), 0);
  begin(meeting);
  meeting.host_left(1);
  meeting.host_joined(host(0), 1);
  EXPECT_FALSE(meeting.is_complete(true));
  EXPECT_EQ(meeting.missing(), 1);
  meeting.host_joined(host(2), 0);
  EXPECT_TRUE(meeting.is_complete(false));
  EXPECT_THAT(names(meeting), ElementsAre("a", "c"));
}

TEST(HostMeeting, AHostThatComesWhileTheRanksRunIsANewcomerIfThereIsRoom) {
  HostMeeting meeting(1, 2);
  meeting.host_joined(host(0), 0);
  begin(meeting);
  EXPECT_FALSE(meeting.has_newcomer());
  meeting.host_joined(host(1), 0);
  EXPECT_TRUE(meeting.has_newcomer());
  meeting.host_left(1);
  EXPECT_FALSE(meeting.has_newcomer()) << "it has gone again";
  meeting.host_joined(host(2), 0);
  meeting.host_joined(host(0), 1);
  EXPECT_TRUE(meeting.is_complete(false));
  begin(meeting);
  meeting.host_joined(host(3), 0);
  EXPECT_FALSE(meeting.has_newcomer()) << "the job is full";
}

TEST(HostMeeting, AHostThatIsLeftOutIsNotWaitedForNorMissedNorTakenInAgain) {
  HostMeeting meeting(1, 2);
  meeting.host_joined(host(0), 0);
  meeting.host_joined(host(1), 0);
  begin(meeting);
  meeting.exclude_host(1, "b");
  meeting.host_joined(host(0), 1);
  meeting.host_joined(host(1), 1);
  auto again = host(2);
  again.name = "b";
  meeting.host_joined(again, 0);
  EXPECT_TRUE(meeting.is_complete(false));
  EXPECT_THAT(names(meeting), ElementsAre("a"));
  EXPECT_THAT(meeting.left_out(), ElementsAre("b"));
  begin(meeting);
  EXPECT_FALSE(meeting.has_newcomer());
  meeting.host_joined(host(3), 0);
  EXPECT_TRUE(meeting.has_newcomer()) << "another host may come";
}

TEST(HostMeeting, WordOfAHostThatHasGoneComesTooLate) {
  HostMeeting meeting(1, 2);
  meeting.host_joined(host(0), 0);
  meeting.host_left(1);
  meeting.host_joined(host(1), 0);
  EXPECT_THAT(names(meeting), ElementsAre("a"));
}

TEST(HostMeeting, AHostThatCannotStartRanksIsNamedAtTheFirstStart) {
  auto sick = host(1);
  sick.problem = "a GPU has fallen off the bus";
  HostMeeting first(2, 3);
  first.host_joined(host(0), 0);
  first.host_joined(sick, 0);
  EXPECT_THAT(plan_job({}, first.hosts()).problems, ElementsAre("host b (node rank 1): a GPU has fallen off the bus"));
}

}  // namespace
}  // namespace lockstep::launcher::host_meeting_test
