// SPDX-License-Identifier: Apache-2.0
// The table of members as a state machine, with a clock of its own: events in, what each member is told out.
#include "runtime/membership/membership_table.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/cause_of.h"
#include "tests/support/messages.h"

namespace lockstep::membership::membership_table_test {
namespace {

using lockstep::testing::expect_cause;
using lockstep::testing::expect_message;
using lockstep::testing::expect_text;
using namespace std::chrono_literals;
using Kind = MembershipTable::Kind;
using Push = MembershipTable::Push;
using Id = MembershipTable::ConnectionId;

const std::optional<std::string> kFine;

ProcessInfo process_of(int rank) { return {.host = "n1", .pid = 100 + rank, .boot_id = "b", .pid_namespace = "1"}; }
Id connection(int rank) { return static_cast<Id>(rank) + 10; }

// A table, its clock, and what the kernel would say of each pid.
class Table : public ::testing::Test {
 protected:
  void SetUp() override { table.observe(now); }
  void restart(const MembershipOptions& options) {
    table = MembershipTable(options, {.process = [](const ProcessInfo&) { return ProcessState::unknown; }});
    table.observe(now);
  }

  std::optional<std::string> register_member(int rank, int world = 3, const std::string& scope = "s",
                                             const std::string& options = "", Id id = 0) {
    return table.register_member(id != 0 ? id : connection(rank), scope, std::to_string(rank), std::to_string(world),
                                 encode(process_of(rank)), options);
  }
  void enter_all(int world = 3, const std::string& options = "") {
    for (int rank = 0; rank < world; ++rank) ASSERT_EQ(register_member(rank, world, "s", options), kFine);
    ASSERT_EQ(heard(), "");
  }
  void beat(int rank, std::int64_t sequence, const std::string& flags = "") {
    ASSERT_EQ(table.heartbeat(connection(rank), sequence, flags), kFine);
  }
  // Time passes and the observer runs; `beating` send heartbeats every half second.
  void run(std::chrono::milliseconds time, const std::set<int>& beating = {}) {
    for (auto done = 0ms; done < time; done += 100ms) {
      now += 100ms;
      table.observe(now);
      if (now.time_since_epoch() % 500ms == 0ms) {
        for (const int rank : beating) beat(rank, 7);
      }
      table.check_members();
    }
  }
  // Everybody sends heartbeats all the time, of the collective that it has started last.
  void run_at(std::chrono::milliseconds time, const std::map<int, std::int64_t>& sequences,
              const std::string& flags = "") {
    for (auto done = 0ms; done < time; done += 500ms) {
      for (const auto& [rank, sequence] : sequences) beat(rank, sequence, flags);
      run(500ms);
    }
  }

  // What was told since, without nudges: "0: lost 1 #1" is to rank 0, of the first failure, rank 1's. The causes go to
  // `causes_told`, by rank.
  std::string heard(bool with_nudges = false) {
    std::string all;
    for (const Push& push : table.take_pushes()) {
      if (push.kind == Kind::nudge && !with_nudges) continue;
      all += (all.empty() ? "" : "; ") + std::to_string(push.to - connection(0)) + ":";
      switch (push.kind) {
        case Kind::lost: all += " lost"; break;
        case Kind::silent: all += " silent"; break;
        case Kind::left: all += " left"; break;
        case Kind::failed: all += " failed"; break;
        case Kind::nudge: all += " nudge"; break;
        case Kind::word: all += " word"; break;
      }
      const bool is_failure = push.kind == Kind::lost || push.kind == Kind::silent || push.kind == Kind::failed;
      if (!is_failure) {
        for (const std::string& field : push.fields) all += " " + field;
        continue;
      }
      all += " " + push.fields.at(0) + " #" + push.fields.at(1);
      const auto cause = decode_cause(push.fields.at(2));
      EXPECT_TRUE(cause);
      if (cause) causes_told[std::stoi(push.fields[0])] = *cause;
    }
    return all;
  }
  // What the server itself has said of a member, with the text on the page.
  void expect_told(const char* name, Cause::Kind kind, int rank, std::int64_t sequence, std::int64_t step = -1) {
    const Cause& cause = causes_told[rank];
    expect_cause(cause, {.kind = kind, .rank = rank, .host = "n1", .pid = 100 + rank});
    EXPECT_EQ(cause.sequence, sequence);
    EXPECT_EQ(cause.step, step);
    expect_message("membership", name, cause.text);
  }

  // What the host heard since, without meetings.
  std::vector<Cause> filed() {
    std::vector<Cause> result;
    for (const MemberNews& news : table.take_news()) {
      EXPECT_GT(news.world_size, 0);
      if (news.cause) result.push_back(*news.cause);
    }
    return result;
  }

  MembershipTable::Time now{1000s};
  std::map<int, ProcessState> states;  // by pid
  std::set<Id> answering;              // connections whose host acknowledges
  std::map<int, Cause> causes_told;
  MembershipTable table{{},
                        {.process =
                             [this](const ProcessInfo& process) {
                               const auto found = states.find(process.pid);
                               return found == states.end() ? ProcessState::unknown : found->second;
                             },
                         .host_answers = [this](Id id) { return answering.contains(id); }}};
};

TEST_F(Table, AWordReachesTheRanksThatItIsForAndIsNotKept) {
  for (const int rank : {0, 1}) ASSERT_EQ(register_member(rank), kFine);
  EXPECT_EQ(table.say(connection(1), "/groups/1", "1 0 2", "hello"), kFine);
  EXPECT_EQ(heard(), "1: word /groups/1 hello; 0: word /groups/1 hello") << "the speaker's own is one of them";
  ASSERT_EQ(register_member(2), kFine);
  EXPECT_EQ(heard(), "");
  EXPECT_EQ(table.say(connection(2), "", "", "to all"), kFine);
  EXPECT_EQ(heard(), "0: word  to all; 1: word  to all; 2: word  to all");
  // Of a group for first words the first is passed on.
  EXPECT_EQ(table.say(connection(1), "/groups/1/first", "0 1", "first"), kFine);
  EXPECT_EQ(table.say(connection(0), "/groups/1/first", "0 1", "second"), kFine);
  EXPECT_EQ(table.say(connection(0), "/groups/2/first", "2", "another"), kFine);
  EXPECT_EQ(heard(), "0: word /groups/1/first first; 1: word /groups/1/first first; 2: word /groups/2/first another");
}

TEST_F(Table, WhoGoesWithoutAGoodbyeIsLostAndAllOthersAreTold) {
  enter_all();
  beat(1, 41);
  table.ended(connection(1));
  EXPECT_EQ(heard(), "0: lost 1 #1; 2: lost 1 #1");
  expect_told("lost", Cause::Kind::lost, 1, 41);
  run(10s, {0, 2});
  EXPECT_EQ(heard(), "") << "once";
  states[102] = ProcessState::running;
  table.ended(connection(2));
  EXPECT_EQ(heard(), "0: lost 2 #2");
  expect_told("lost, and its process is on this host", Cause::Kind::lost, 2, 7);
}

TEST_F(Table, WhoSaysGoodbyeHasLeftAndIsNeverLost) {
  enter_all();
  ASSERT_EQ(table.goodbye(connection(1), 41), kFine);
  table.ended(connection(1));
  ASSERT_EQ(table.goodbye(connection(0), 42), kFine);
  EXPECT_EQ(heard(), "") << "at the next look";
  run(100ms, {2});
  EXPECT_EQ(heard(), "2: left 0 42") << "of rank 0 alone, and none for those who left";
  run(10s, {2});
  EXPECT_EQ(heard(), "");
  EXPECT_EQ(table.present(), 1u);
}

constexpr const char* kTenSeconds = "hang-timeout=10000";

class Hang : public Table {
 protected:
  void SetUp() override {
    Table::SetUp();
    enter_all(3, kTenSeconds);
  }
};

TEST_F(Hang, WhoIsBehindAndStartsNothingIsNamedWithWhatItDoes) {
  const std::map<int, std::int64_t> places = {{0, 42}, {1, 41}, {2, 42}};
  run_at(1s, {{0, 41}, {1, 41}, {2, 41}});
  run_at(10s, places, "in=all_reduce step=12");
  EXPECT_EQ(heard(), "") << "ten seconds are allowed";
  run_at(1s, places, "in=all_reduce step=12");
  EXPECT_EQ(heard(), "0: silent 1 #1; 1: silent 1 #1; 2: silent 1 #1") << "itself too";
  expect_told("hangs", Cause::Kind::silent, 1, 41, 12);
  run_at(60s, places);
  EXPECT_EQ(heard(), "") << "once, and nobody else for what follows";
  EXPECT_EQ(table.members().at(1).state, MemberState::silent);
  EXPECT_EQ(table.members().at(0).state, MemberState::present);
}

TEST_F(Hang, OfTwoTheOneFurtherBehindIsNamed) {
  states[102] = ProcessState::stopped;
  run_at(11s, {{0, 42}, {1, 41}, {2, 40}});
  EXPECT_EQ(heard(), "0: silent 2 #1; 1: silent 2 #1; 2: silent 2 #1");
  expect_told("hangs, stopped", Cause::Kind::silent, 2, 40);
}

TEST_F(Hang, NobodyHangsWhereAllAreEquallyFarOrMove) {
  run_at(600s, {{0, 41}, {1, 41}, {2, 41}});
  // Late for the next one: only what it is late counts.
  run_at(9s, {{0, 42}, {1, 41}, {2, 42}});
  run_at(1s, {{0, 42}, {1, 42}, {2, 42}});
  for (int i = 0; i < 10; ++i) run_at(9s, {{0, 100}, {1, i}, {2, 100}});
  EXPECT_EQ(heard(), "");
}

TEST_F(Hang, WhoIsInADebuggerDoesNotHang) {
  const std::map<int, std::int64_t> places = {{0, 42}, {1, 41}, {2, 42}};
  run_at(30s, places, "traced");
  EXPECT_EQ(heard(), "") << "by its own word";
  states[101] = ProcessState::traced;
  run_at(30s, places);
  EXPECT_EQ(heard(), "") << "by the kernel's";
  states[101] = ProcessState::running;
  run_at(11s, places);
  EXPECT_NE(heard(), "");
}

TEST_F(Table, WithoutATimeoutNobodyHangsAndOfSeveralTheLeastCounts) {
  enter_all(2);
  run_at(600s, {{0, 42}, {1, 41}});
  EXPECT_EQ(heard(), "");
  for (const int rank : {0, 1}) ASSERT_EQ(table.goodbye(connection(rank), 42), kFine);
  heard();
  ASSERT_EQ(register_member(0, 2, "s", "hang-timeout=600000"), kFine);
  ASSERT_EQ(register_member(1, 2, "s", "liveness=off hang-timeout=5000"), kFine);
  run_at(5s, {{0, 42}, {1, 41}});
  EXPECT_EQ(heard(), "");
  run_at(1s, {{0, 42}, {1, 41}});
  EXPECT_EQ(heard(), "0: silent 1 #1; 1: silent 1 #1");
}

TEST_F(Table, WhoIsSilentIsNamedAfterTwoSeconds) {
  enter_all();
  run(1s, {0, 1, 2});
  run(2s, {0, 2});
  EXPECT_EQ(heard(), "") << "two seconds are allowed";
  run(100ms, {0, 2});
  EXPECT_EQ(heard(), "0: silent 1 #1; 1: silent 1 #1; 2: silent 1 #1") << "it is told too, for when it goes on";
  expect_told("silent", Cause::Kind::silent, 1, 7);
  run(10s, {0, 1, 2});
  table.ended(connection(1));
  EXPECT_EQ(heard(), "") << "it failed once";
}

TEST_F(Table, TheKernelsWordSaysWhy) {
  enter_all(6);
  states = {
      {101, ProcessState::stopped}, {102, ProcessState::gone}, {103, ProcessState::running}, {105, ProcessState::gone}};
  answering = {connection(2), connection(4)};
  run(2100ms, {0});
  heard();
  expect_told("silent, stopped", Cause::Kind::silent, 1, 0);
  expect_told("silent, ended while its child is there", Cause::Kind::silent, 2, 0);
  expect_told("silent, running", Cause::Kind::silent, 3, 0);
  expect_told("silent, and its host answers", Cause::Kind::silent, 4, 0);
  // A process on this host whose cable is cut ends for it, and its end does not cross the cable either.
  expect_told("silent, ended behind a cut cable", Cause::Kind::silent, 5, 0);
}

TEST_F(Table, AMemberThatIsSilentIsNudgedOnceToSeeWhetherItsHostAnswers) {
  enter_all();
  run(1s, {0});
  EXPECT_EQ(heard(true), "");
  run(100ms, {0});
  EXPECT_EQ(heard(true), "1: nudge; 2: nudge");
  run(900ms, {0});
  EXPECT_EQ(heard(true), "") << "once";
}

TEST_F(Table, TimeInWhichTheObserverDidNotRunIsNobodysSilence) {
  enter_all();
  run(1s, {0, 1, 2});
  now += 1h;
  run(1s, {0, 1, 2});
  EXPECT_EQ(heard(), "");
  // And one that is silent all the while is found, by what was observed.
  for (int i = 0; i < 8; ++i) {
    now += 5s;
    run(100ms, {0, 2});
    beat(0, 7);
    beat(2, 7);
    ASSERT_EQ(heard(), "") << i;
  }
  run(1s, {0, 2});
  EXPECT_EQ(heard(), "0: silent 1 #1; 1: silent 1 #1; 2: silent 1 #1");
  now -= 10s;
  table.observe(now);
  run(1s);
  EXPECT_EQ(heard(), "") << "nor is a clock that goes backwards";
}

TEST_F(Table, WhoIsInADebuggerIsNotSilentAndGetsTimeAfterwards) {
  enter_all();
  beat(1, 7, "traced");
  run(1h, {0, 2});
  EXPECT_EQ(heard(), "") << "by its own word";
  beat(1, 7);
  states[101] = ProcessState::traced;
  run(1min, {0, 2});
  EXPECT_EQ(heard(), "") << "by the kernel's";
  states[101] = ProcessState::running;
  run(1500ms, {0, 2});
  EXPECT_EQ(heard(), "");
  run(1s, {0, 1, 2});
  run(2s, {0, 2});
  EXPECT_EQ(heard(), "");
  run(500ms, {0, 2});
  EXPECT_EQ(heard(), "0: silent 1 #1; 1: silent 1 #1; 2: silent 1 #1");
}

TEST_F(Table, AMemberMayAskForNoLivenessOrForMoreTime) {
  ASSERT_EQ(register_member(0, 3), kFine);
  ASSERT_EQ(register_member(1, 3, "s", "liveness=off"), kFine);
  ASSERT_EQ(register_member(2, 3, "s", "silence=5000"), kFine);
  run(4500ms, {0});
  EXPECT_EQ(heard(), "");
  run(1s, {0});
  EXPECT_EQ(heard(), "0: silent 2 #1; 1: silent 2 #1; 2: silent 2 #1");
  run(1h, {0});
  EXPECT_EQ(heard(), "");
  table.ended(connection(1));
  EXPECT_EQ(heard(), "0: lost 1 #2; 2: lost 1 #2");
}

TEST_F(Table, TheLimitIsAnOption) {
  restart({.silence = 500ms});
  enter_all(1, "silence=2000");
  run(2s);
  EXPECT_EQ(heard(), "") << "who asks for more gets it";
  restart({.silence = 500ms});
  enter_all(1);
  run(500ms);
  EXPECT_EQ(heard(), "");
  run(100ms);
  EXPECT_EQ(heard(), "0: silent 0 #1");
}

TEST_F(Table, AReportIsPassedOnAndItsReportersEndIsNoSecondFailure) {
  enter_all(4);
  ASSERT_EQ(table.report(connection(2), "no space left\non disk"), kFine);
  EXPECT_EQ(heard(), "0: failed 2 #1; 1: failed 2 #1; 2: failed 2 #1; 3: failed 2 #1");
  expect_told("failed", Cause::Kind::failed, 2, 0);
  EXPECT_EQ(filed().size(), 1u);
  table.ended(connection(2));
  EXPECT_EQ(heard(), "");
}

TEST_F(Table, AnAccusationIsPassedOnAndItsReportersEndIsNone) {
  enter_all(4);
  const Cause late{.kind = Cause::Kind::timeout, .rank = 3, .reporter = 9, .sequence = 41, .text = "rank 3 is late"};
  ASSERT_EQ(table.report(connection(1), encode(late)), kFine);
  EXPECT_EQ(heard(), "0: failed 1 #1; 1: failed 1 #1; 2: failed 1 #1; 3: failed 1 #1");
  Cause as_filed = late;
  as_filed.reporter = 1;  // whatever it says itself
  EXPECT_EQ(causes_told[1], as_filed);
  EXPECT_EQ(filed(), std::vector<Cause>{as_filed});
  ASSERT_EQ(table.report(connection(2), encode(late)), kFine);
  EXPECT_EQ(heard(), "") << "a witness of what all know";
  EXPECT_EQ(filed().size(), 1u);
  table.ended(connection(1));
  table.ended(connection(2));
  EXPECT_EQ(heard(), "") << "their ends are consequences";
  EXPECT_TRUE(filed().empty());
  table.ended(connection(3));
  EXPECT_EQ(filed().size(), 1u);
}

TEST_F(Table, AFailureThatTheGroupSurvivesIsForTheHostAlone) {
  enter_all();
  const Cause full{.kind = Cause::Kind::failed, .rank = 1, .ends_group = false, .text = "the disk is full"};
  ASSERT_EQ(table.report(connection(1), encode(full)), kFine);
  EXPECT_EQ(heard(), "");
  const auto causes = filed();
  ASSERT_EQ(causes.size(), 1u);
  expect_cause(causes[0], {.kind = Cause::Kind::failed, .rank = 1, .reporter = 1, .host = "n1", .pid = 101});
  table.ended(connection(1));
  EXPECT_EQ(heard(), "0: lost 1 #1; 2: lost 1 #1") << "it was here still, and its end is a loss";
}

TEST_F(Table, TheHostHearsThatAllHaveRegistered) {
  for (const int rank : {0, 1}) ASSERT_EQ(register_member(rank, 3), kFine);
  EXPECT_TRUE(table.take_news().empty());
  ASSERT_EQ(register_member(2, 3), kFine);
  const auto news = table.take_news();
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].world_size, 3);
  EXPECT_FALSE(news[0].cause);
}

TEST_F(Table, FailuresAreNumberedAndWhoComesLateGetsThoseBefore) {
  for (const int rank : {0, 1, 2}) ASSERT_EQ(register_member(rank, 4), kFine);
  ASSERT_EQ(table.goodbye(connection(0), 3), kFine);
  table.ended(connection(2));
  ASSERT_EQ(table.report(connection(1), "then I"), kFine);
  run(100ms, {1});
  heard();
  ASSERT_EQ(register_member(3, 4), kFine);
  EXPECT_EQ(heard(), "3: lost 2 #1; 3: failed 1 #2; 3: left 0 3");
}

TEST_F(Table, OnlyTheFirstFailuresAreTold) {
  enter_all(100);
  for (int rank = 1; rank < 100; ++rank) {
    table.ended(connection(rank));
    EXPECT_EQ(heard().starts_with("0: lost"), rank <= kMostFailures);
  }
  // A member that was only silent is told of itself, whatever went before.
  ASSERT_EQ(table.give_up(connection(0), encode(Cause{.kind = Cause::Kind::silent, .text = "hangs"})), kFine);
  EXPECT_EQ(heard(), "0: silent 0 #100");
}

TEST_F(Table, ADuplicateIsRefusedAlsoWhenTheFirstHasGone) {
  enter_all(5);
  run(2100ms, {0, 2, 3, 4});
  ASSERT_EQ(table.goodbye(connection(2), 0), kFine);
  table.ended(connection(3));
  ASSERT_EQ(table.report(connection(4), "x"), kFine);
  heard();
  for (int rank = 0; rank < 5; ++rank) {
    const ProcessInfo second{.host = "n2", .pid = 5, .boot_id = "c"};
    const auto refused = table.register_member(99, "s", std::to_string(rank), "5", encode(second), "");
    expect_message("membership", "rank " + std::to_string(rank), refused.value_or("entered"));
    const std::string number = std::to_string(rank);
    expect_text(refused.value_or(""), {"rank " + number + " (host n1, pid 10" + number + "), which",
                                       "and rank " + number + " (host n2, pid 5)"});
  }
  table.ended(99);
  EXPECT_EQ(heard(), "") << "who was refused is not a member";
  EXPECT_EQ(register_member(2, 5, "another scope"), kFine);
}

TEST_F(Table, WhatIsRefused) {
  ASSERT_EQ(register_member(0), kFine);
  const auto refusal = [&](const std::string& rank, const std::string& world = "3", std::string options = "",
                           const std::string& scope = "s", const std::string& process = "") {
    return table.register_member(99, scope, rank, world, process.empty() ? encode(process_of(1)) : process, options)
        .value_or("entered");
  };
  const std::pair<const char*, std::string> refused[] = {
      {"an empty scope", refusal("1", "3", "", "")},
      {"a long scope", refusal("1", "3", "", std::string(1025, 's'))},
      {"rank 3 of 3", refusal("3")},
      {"rank -1", refusal("-1")},
      {"rank 1.5", refusal("1.5")},
      {"a rank over 64 bits", refusal("99999999999999999999")},
      {"a world of 0", refusal("0", "0")},
      {"a world of x", refusal("0", "x")},
      {"a world over the limit", refusal("0", "32769")},
      {"a world of 4 where others said 3", refusal("1", "4")},
      {"a process without a pid", refusal("1", "3", "", "s", "host n1\n")},
      {"a process with pid x", refusal("1", "3", "", "s", "host n1\npid x\nboot_id b\n")},
      {"a process of an unprintable host", refusal("1", "3", "", "s", "host n\x01\npid 1\nboot_id b\n")},
      {"an unknown option", refusal("1", "3", " liveness=off colour")},
      {"liveness=on", refusal("1", "3", "liveness=on")},
      {"hang-timeout without a value", refusal("1", "3", "hang-timeout=")},
      {"hang-timeout too short", refusal("1", "3", "hang-timeout=1999")},
      {"silence without a value", refusal("1", "3", "silence")},
      {"silence too short", refusal("1", "3", "silence=1999")},
      {"the connection of another", register_member(1, 3, "s", "", connection(0)).value_or("entered")},
      {"a report about rank 3 of 3", *table.report(connection(0), encode(Cause{.rank = 3, .text = "x"}))},
      {"a report about rank -2", *table.report(connection(0), encode(Cause{.rank = -2, .text = "x"}))},
      {"a word for rank 3 of 3", *table.say(connection(0), "", "0 3", "?")},
      {"a word for rank x", *table.say(connection(0), "", "x", "?")},
      {"an end without a cause", *table.give_up(connection(0), "x")},
  };
  for (const auto& [what, text] : refused) expect_message("membership", what, text);
  EXPECT_EQ(table.size(), 1u);
  heard();
  ASSERT_EQ(register_member(1, 3, "s", "hang-timeout=2000 silence=2000"), kFine);
  ASSERT_EQ(register_member(0, 32768, std::string(1024, 's'), "", 99), kFine);
}

TEST_F(Table, WhoIsNoMemberCantSayAnything) {
  enter_all();
  ASSERT_EQ(table.goodbye(connection(1), 0), kFine);
  for (const Id id : {Id{1}, connection(1)}) {
    const std::optional<std::string> answers[] = {table.heartbeat(id, 0, ""), table.goodbye(id, 0),
                                                  table.report(id, "x"),      table.message(id, "x"),
                                                  table.say(id, "", "", "?"), table.give_up(id, "x")};
    for (const auto& answer : answers) {
      EXPECT_EQ(answer, "this connection is not a member's: REGISTER comes first, and nothing after GOODBYE");
    }
  }
}

TEST_F(Table, ScopesKnowNothingOfEachOtherAndAreForgottenWhereNobodyIsConnected) {
  ASSERT_EQ(register_member(0, 2, "a"), kFine);
  ASSERT_EQ(register_member(1, 2, "b/1"), kFine);
  table.ended(connection(1));
  EXPECT_EQ(heard(), "");
  table.forget("a");
  EXPECT_EQ(table.size(), 2u) << "somebody is here";
  table.forget("another");
  EXPECT_EQ(table.size(), 2u);
  table.forget("b/");
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(register_member(1, 2, "b/1"), kFine) << "as the first";
}

TEST_F(Table, AScopeThatIsOverIsForgotten) {
  for (int job = 0; job < 3; ++job) {
    const std::string scope = "job " + std::to_string(job);
    for (int rank = 0; rank < 3; ++rank) ASSERT_EQ(register_member(rank, 3, scope), kFine);
    table.ended(connection(1));
    for (const int rank : {0, 2}) ASSERT_EQ(table.goodbye(connection(rank), 1), kFine);
    run(100ms);
    heard();
  }
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.present(), 0u);
}

TEST_F(Table, AFullTableMakesRoomWhereNobodyIsConnectedAndElseRefuses) {
  restart({.max_members = 4});
  for (const int rank : {0, 1}) ASSERT_EQ(register_member(rank, 3, "a"), kFine);
  for (const int rank : {3, 4}) ASSERT_EQ(register_member(rank, 8, "b"), kFine);
  EXPECT_EQ(register_member(5, 8, "b"), "the store knows 4 members, the limit is 4");
  table.ended(connection(0));
  table.ended(connection(1));
  EXPECT_EQ(register_member(5, 8, "b"), kFine) << "nobody of scope a is here";
  EXPECT_EQ(table.size(), 3u);
}

TEST_F(Table, ItsMembersAreSeenWithWhereTheyAreAndSinceWhen) {
  enter_all();
  beat(1, 7, "in=barrier");
  run(1s, {0, 1, 2});
  ASSERT_EQ(table.goodbye(connection(2), 9), kFine);
  const auto members = table.members();
  ASSERT_EQ(members.size(), 3u);
  EXPECT_EQ(members[1].scope, "s");
  EXPECT_EQ(members[1].info.rank, 1);
  EXPECT_EQ(members[1].position.sequence, 7);
  EXPECT_EQ(members[1].unchanged_for, 1s);
  EXPECT_EQ(members[2].state, MemberState::left);
  EXPECT_EQ(members[2].position.sequence, 9);
}

TEST_F(Table, ListsTheConnectionsOfTheSilentUntilTheyEnd) {
  enter_all();
  run(3s, {0});
  const std::vector both = {std::pair(connection(1), 1), std::pair(connection(2), 2)};
  EXPECT_EQ(table.given_up(), both);
  beat(1, 8);
  EXPECT_EQ(table.given_up(), both) << "who was given up and comes back is given up";
  ASSERT_EQ(table.goodbye(connection(1), 8), kFine);
  EXPECT_EQ(table.given_up(), std::vector{both[1]});
  table.ended(connection(2));
  EXPECT_TRUE(table.given_up().empty());
}

TEST(MemberPosition, GoesThroughFlagsAndUnknownWordsArePassedOver) {
  for (const MemberPosition& at :
       {MemberPosition{.sequence = 4}, MemberPosition{.sequence = 4, .collective = "all_reduce", .step = 12},
        MemberPosition{.sequence = 4, .step = 0, .totals = std::string(640, '1')},
        MemberPosition{.sequence = 4, .step = 3, .steps_done = 515, .totals = "3,-1,0.25"}}) {
    bool traced = false;
    EXPECT_EQ(position_of(4, flags_of(at), traced), at);
    EXPECT_FALSE(traced);
  }
  bool traced = false;
  const auto at = position_of(1,
                              "later=x traced step=-9 in=" + std::string(100, 'a') +
                                  " step=x totals=" + std::string(20000, '1') + " totals=\x1b[2J",
                              traced);
  EXPECT_TRUE(traced);
  EXPECT_EQ(at, (MemberPosition{.sequence = 1}));
  EXPECT_EQ((MemberPosition{.sequence = 41, .collective = "all_reduce", .step = 12}.describe()),
            "collective 41 (all_reduce, step 12)");
  EXPECT_EQ((MemberPosition{.sequence = 41}.describe()), "collective 41");
}

TEST(MemberInfo, IsReadAsWrittenAndMeansSomethingInItsOwnPlaceOnly) {
  const auto self = ProcessInfo::of_this_process();
  EXPECT_EQ(decode_process_info(encode(self)), self);
  EXPECT_EQ(state_of(self, self), process_state(self.pid));
  ProcessInfo elsewhere = self;
  elsewhere.boot_id = "another";
  EXPECT_EQ(state_of(elsewhere, self), ProcessState::unknown);
  for (const char* name : {"another", ""}) {
    elsewhere = self;
    elsewhere.pid_namespace = name;
    EXPECT_EQ(state_of(elsewhere, self), ProcessState::unknown);
  }
  // What can't be printed is no reason to be refused, nor what a later version writes.
  const ProcessInfo odd{.host = "n\x01\xc3\xa4", .pid = 3, .boot_id = "b"};
  const auto read = decode_process_info(encode(odd) + "colour blue\n");
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->host, "n???");
  EXPECT_EQ(read->pid, 3);
}

}  // namespace
}  // namespace lockstep::membership::membership_table_test
