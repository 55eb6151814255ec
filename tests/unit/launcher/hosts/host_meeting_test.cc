// SPDX-License-Identifier: Apache-2.0
// Who takes part in which start of a job's ranks.
#include "launcher/hosts/host_meeting.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>

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

}  // namespace
}  // namespace lockstep::launcher::host_meeting_test
