// SPDX-License-Identifier: Apache-2.0
// The table of members as a state machine, with a clock of its own.
#include "runtime/membership/membership_table.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/error_of.h"

namespace lockstep::membership::membership_table_test {
namespace {

using lockstep::testing::expect_text;
using namespace std::chrono_literals;
using Kind = MembershipTable::Kind;
using Push = MembershipTable::Push;

ProcessInfo process_of(int rank) { return {.host = "n1", .pid = 100 + rank, .boot_id = "b", .pid_namespace = "1"}; }

Cause cause_in(const Push& push) { return decode_cause(push.fields.at(2)).value_or(Cause{.text = "no cause"}); }
std::string text_of(const Push& push) { return cause_in(push).text; }

// What the server itself says of the member 1, whose last heartbeat spoke of this.
Cause cause_about_1(Cause::Kind kind, std::int64_t sequence, std::int64_t step, std::string text) {
  return {.kind = kind,
          .rank = 1,
          .host = "n1",
          .pid = 101,
          .step = step,
          .sequence = sequence,
          .text = "rank 1 (host n1, pid 101) " + std::move(text)};
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// A table, its clock, and what the kernel would say of each pid.
class Table : public ::testing::Test {
 protected:
  void SetUp() override { table.observe(now); }

  std::optional<std::string> register_member(int rank, int world = 3, const std::string& scope = "s",
                                             const std::string& options = "", MembershipTable::ConnectionId id = 0) {
    return table.register_member(id != 0 ? id : connection(rank), scope, std::to_string(rank), std::to_string(world),
                                 encode(process_of(rank)), options);
  }
  static MembershipTable::ConnectionId connection(int rank) { return static_cast<std::uint64_t>(rank) + 10; }
  void enter_all(int world = 3) {
    for (int rank = 0; rank < world; ++rank) ASSERT_EQ(register_member(rank, world), std::nullopt);
    ASSERT_TRUE(told().empty());
  }
  // Time passes and the observer runs; `beating` send heartbeats every half second.
  void run(std::chrono::milliseconds time, const std::set<int>& beating = {}) {
    for (auto done = 0ms; done < time; done += 100ms) {
      now += 100ms;
      table.observe(now);
      if (now.time_since_epoch() % 500ms == 0ms) {
        for (const int rank : beating) ASSERT_EQ(table.heartbeat(connection(rank), 7, ""), std::nullopt);
      }
      table.check_members();
    }
  }
  // Time passes and the observer doesn't run.
  void stop(std::chrono::milliseconds time) { now += time; }

  // What was told since, without nudges.
  std::vector<Push> told() {
    auto pushes = table.take_pushes();
    std::erase_if(pushes, [](const Push& push) { return push.kind == Kind::nudge; });
    return pushes;
  }

  // What the host heard since, without meetings.
  std::vector<Cause> causes() {
    std::vector<Cause> result;
    for (const MemberNews& news : table.take_news()) {
      EXPECT_GT(news.world_size, 0);
      if (news.cause) result.push_back(*news.cause);
    }
    return result;
  }

  MembershipTable::Time now{1000s};
  std::map<int, ProcessState> states;                 // by pid
  std::set<MembershipTable::ConnectionId> answering;  // connections whose host acknowledges
  MembershipTable table{{},
                        {.process =
                             [this](const ProcessInfo& process) {
                               const auto found = states.find(process.pid);
                               return found == states.end() ? ProcessState::unknown : found->second;
                             },
                         .host_answers = [this](MembershipTable::ConnectionId id) { return answering.contains(id); }}};
};

TEST_F(Table, AWordReachesTheRanksThatItIsForAndIsNotKept) {
  ASSERT_EQ(register_member(0), std::nullopt);
  ASSERT_EQ(register_member(1), std::nullopt);
  EXPECT_EQ(table.say(connection(1), "/groups/1", "1 0 2", "hello"), std::nullopt);
  auto pushes = told();
  ASSERT_EQ(pushes.size(), 2u) << "the speaker's own is one of them, and who is not there yet has none";
  EXPECT_EQ(pushes[0].to, connection(1));
  EXPECT_EQ(pushes[1].to, connection(0));
  for (const Push& push : pushes) {
    EXPECT_EQ(push.kind, Kind::word);
    EXPECT_EQ(push.fields, (std::vector<std::string>{"/groups/1", "hello"}));
  }
  ASSERT_EQ(register_member(2), std::nullopt);
  EXPECT_TRUE(told().empty());
  EXPECT_EQ(table.say(connection(2), "", "", "to all"), std::nullopt);
  EXPECT_EQ(told().size(), 3u);
  expect_text(table.say(connection(2), "", "0 3", "?").value_or(""), {"not a rank of this job"});
  expect_text(table.say(connection(2), "", "0 x", "?").value_or(""), {"not a rank of this job"});
  expect_text(table.say(77, "", "", "?").value_or(""), {"not a member's"});
}

TEST_F(Table, OfTheWordsOfAGroupForFirstWordsTheFirstIsPassedOn) {
  for (const int rank : {0, 1, 2}) ASSERT_EQ(register_member(rank), std::nullopt);
  EXPECT_EQ(table.say(connection(1), "/groups/1/first", "0 1", "first"), std::nullopt);
  EXPECT_EQ(table.say(connection(0), "/groups/1/first", "0 1", "second"), std::nullopt);
  EXPECT_EQ(table.say(connection(0), "/groups/2/first", "0 2", "of another group"), std::nullopt);
  std::vector<std::pair<MembershipTable::ConnectionId, std::string>> heard;
  for (const Push& push : told()) heard.emplace_back(push.to, push.fields.at(1));
  EXPECT_EQ(heard, (decltype(heard){{connection(0), "first"},
                                    {connection(1), "first"},
                                    {connection(0), "of another group"},
                                    {connection(2), "of another group"}}));
}

TEST_F(Table, WhoGoesWithoutAGoodbyeIsLostAndAllOthersAreTold) {
  enter_all();
  ASSERT_EQ(table.heartbeat(connection(1), 41, ""), std::nullopt);
  table.ended(connection(1));
  const auto pushes = told();
  ASSERT_EQ(pushes.size(), 2u);
  EXPECT_EQ(pushes[0].to, connection(0));
  EXPECT_EQ(pushes[1].to, connection(2));
  for (const Push& push : pushes) {
    EXPECT_EQ(push.kind, Kind::lost);
    EXPECT_EQ(push.fields[0], "1");
    EXPECT_EQ(push.fields[1], "1") << "the first cause";
    EXPECT_EQ(cause_in(push),
              cause_about_1(Cause::Kind::lost, 41, -1,
                            "is lost: its connection ended without a goodbye; its process ended, or the network to its "
                            "host broke: look at its output and exit code; its last heartbeat reported collective 41"))
        << text_of(push);
  }
  EXPECT_TRUE(told().empty());
  run(10s, {0, 2});
  EXPECT_TRUE(told().empty()) << "once";
}

// A world whose members ask for a hang timeout of 10 s, and say where they are.
class Hang : public Table {
 protected:
  void enter_all_with(std::initializer_list<std::string> options) {
    int rank = 0;
    for (const auto& words : options) {
      ASSERT_EQ(register_member(rank++, static_cast<int>(options.size()), "s", words), std::nullopt);
    }
  }
  // Everybody sends heartbeats all the time, of the collective that it has started last.
  void run_at(std::chrono::milliseconds time, const std::map<int, std::int64_t>& sequences,
              const std::string& flags = "") {
    for (auto done = 0ms; done < time; done += 500ms) {
      for (const auto& [rank, sequence] : sequences) {
        ASSERT_EQ(table.heartbeat(connection(rank), sequence, flags), std::nullopt);
      }
      run(500ms);
    }
  }
};

constexpr const char* kTenSeconds = "hang-timeout=10000";

TEST_F(Hang, WhoIsBehindAndStartsNothingIsNamedWithWhatItDoes) {
  enter_all_with({kTenSeconds, kTenSeconds, kTenSeconds});
  run_at(1s, {{0, 41}, {1, 41}, {2, 41}});
  run_at(10s, {{0, 42}, {1, 41}, {2, 42}}, "in=all_reduce step=12");
  EXPECT_TRUE(told().empty()) << "ten seconds are allowed";
  run_at(1s, {{0, 42}, {1, 41}, {2, 42}}, "in=all_reduce step=12");
  const auto pushes = told();
  ASSERT_EQ(pushes.size(), 3u) << "all are told, itself too";
  for (const Push& push : pushes) {
    EXPECT_EQ(push.kind, Kind::silent);
    EXPECT_EQ(push.fields[0], "1");
    EXPECT_EQ(cause_in(push), cause_about_1(Cause::Kind::silent, 41, 12,
                                            "hangs: the last that it started is collective 41 (all_reduce, step 12), "
                                            "and nothing since for 10.1 s of 10 s allowed by LOCKSTEP_HANG_TIMEOUT, "
                                            "while rank 0 (host n1, pid 100) has started collective 42 (all_reduce, "
                                            "step 12); `lockstep inspect`, 'gdb -p 101' or py-spy shows what it does"))
        << text_of(push);
  }
  run_at(60s, {{0, 42}, {1, 41}, {2, 42}});
  EXPECT_TRUE(told().empty()) << "once, and nobody else for what follows";
  const auto members = table.members();
  ASSERT_EQ(members.size(), 3u);
  EXPECT_EQ(members[1].state, MemberState::silent);
  EXPECT_EQ(members[0].state, MemberState::present);
}

TEST_F(Hang, OfTwoTheOneFurtherBehindIsNamed) {
  enter_all_with({kTenSeconds, kTenSeconds, kTenSeconds});
  run_at(11s, {{0, 42}, {1, 41}, {2, 40}});
  const auto pushes = told();
  ASSERT_FALSE(pushes.empty());
  EXPECT_EQ(pushes[0].fields[0], "2");
}

TEST_F(Hang, NobodyHangsWhereAllAreEquallyFar) {
  enter_all_with({kTenSeconds, kTenSeconds, kTenSeconds});
  run_at(600s, {{0, 41}, {1, 41}, {2, 41}});
  EXPECT_TRUE(told().empty()) << "they compute, or wait together for something else";
  // Late for the next one: only what it is late counts.
  run_at(9s, {{0, 42}, {1, 41}, {2, 42}});
  run_at(1s, {{0, 42}, {1, 42}, {2, 42}});
  EXPECT_TRUE(told().empty());
}

TEST_F(Hang, WhoIsBehindAndMovesIsSlowAndDoesNotHang) {
  enter_all_with({kTenSeconds, kTenSeconds});
  for (int i = 0; i < 10; ++i) run_at(9s, {{0, 100}, {1, i}});
  EXPECT_TRUE(told().empty());
}

TEST_F(Hang, WithoutATimeoutNobodyHangsAndOfSeveralTheLeastCounts) {
  enter_all_with({"", ""});
  run_at(600s, {{0, 42}, {1, 41}});
  EXPECT_TRUE(told().empty());
  for (const int rank : {0, 1}) ASSERT_EQ(table.goodbye(connection(rank), 42), std::nullopt);
  for (const int rank : {0, 1}) table.ended(connection(rank));
  told();
  enter_all_with({"hang-timeout=600000", "liveness=off hang-timeout=5000"});
  run_at(5s, {{0, 42}, {1, 41}});
  EXPECT_TRUE(told().empty());
  run_at(1s, {{0, 42}, {1, 41}});
  const auto pushes = told();
  ASSERT_FALSE(pushes.empty());
  EXPECT_EQ(pushes[0].kind, Kind::silent);
  EXPECT_EQ(pushes[0].fields[0], "1");
}

TEST_F(Hang, WhoIsInADebuggerDoesNotHang) {
  enter_all_with({kTenSeconds, kTenSeconds});
  run_at(30s, {{0, 42}, {1, 41}}, "traced");
  EXPECT_TRUE(told().empty()) << "by its own word";
  states[101] = ProcessState::traced;
  run_at(30s, {{0, 42}, {1, 41}});
  EXPECT_TRUE(told().empty()) << "by the kernel's";
  states[101] = ProcessState::stopped;
  run_at(11s, {{0, 42}, {1, 41}});
  const auto pushes = told();
  ASSERT_FALSE(pushes.empty());
  expect_text(pushes[0].fields[2], {"; its process is stopped"});
}

TEST_F(Hang, ATimeoutThatIsNoneIsRefused) {
  for (const std::string bad : {"hang-timeout=", "hang-timeout=1999", "hang-timeout=x", "hang-timeout=-5000", "silence",
                                "silence=", "silence=1999"}) {
    EXPECT_EQ(register_member(0, 3, "s", bad), "option '" + bad + "' is not a number of milliseconds from 2000 on");
  }
}

TEST_F(Table, ItsMembersAreSeenWithWhereTheyAreAndSinceWhen) {
  enter_all();
  ASSERT_EQ(table.heartbeat(connection(1), 7, "in=barrier"), std::nullopt);
  run(1s, {0, 1, 2});
  ASSERT_EQ(table.goodbye(connection(2), 9), std::nullopt);
  const auto members = table.members();
  ASSERT_EQ(members.size(), 3u);
  EXPECT_EQ(members[1].scope, "s");
  EXPECT_EQ(members[1].info.rank, 1);
  EXPECT_EQ(members[1].position.sequence, 7);
  EXPECT_EQ(members[1].unchanged_for, 1s);
  EXPECT_EQ(members[2].state, MemberState::left);
  EXPECT_EQ(members[2].position.sequence, 9);
}

TEST(MemberPosition, GoesThroughFlagsAndUnknownWordsArePassedOver) {
  for (const MemberPosition& at :
       {MemberPosition{.sequence = 4}, MemberPosition{.sequence = 4, .collective = "all_reduce", .step = 12},
        MemberPosition{.sequence = 4, .collective = "barrier"}, MemberPosition{.sequence = 4, .step = 0},
        MemberPosition{.sequence = 4, .step = 3, .steps_done = 515},
        MemberPosition{.sequence = 4, .step = 3, .totals = "3,-1,0.25"}, MemberPosition{.sequence = 4, .totals = "1"},
        MemberPosition{.sequence = 4, .totals = std::string(640, '1')}}) {
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

TEST_F(Hang, AMemberMayAskToBeSilentForLonger) {
  enter_all_with({"silence=5000", "silence=2000 hang-timeout=600000"});
  run(4500ms, {1});
  EXPECT_TRUE(told().empty());
  run(1s, {1});
  const auto pushes = told();
  ASSERT_FALSE(pushes.empty());
  EXPECT_EQ(pushes[0].kind, Kind::silent);
  EXPECT_EQ(pushes[0].fields[0], "0");
}

TEST_F(Table, ScopesOfAPrefixAreForgottenWhereNobodyIsConnected) {
  enter_all();
  table.forget("");
  EXPECT_EQ(table.size(), 3u) << "they are here";
  ASSERT_EQ(register_member(0, 2, "other/1", "", 99), std::nullopt);
  table.ended(99);
  table.forget("another");
  EXPECT_EQ(table.size(), 4u);
  table.forget("other/");
  EXPECT_EQ(table.size(), 3u);
  EXPECT_EQ(register_member(0, 2, "other/1", "", 100), std::nullopt) << "as the first";
}

TEST_F(Table, WhoSaysGoodbyeHasLeftAndIsNeverLost) {
  enter_all();
  ASSERT_EQ(table.goodbye(connection(1), 41), std::nullopt);
  table.ended(connection(1));
  ASSERT_EQ(table.goodbye(connection(0), 42), std::nullopt);
  EXPECT_TRUE(told().empty()) << "at the next look";
  run(100ms, {2});
  const auto pushes = told();
  ASSERT_EQ(pushes.size(), 1u) << "of rank 0 alone, and none for those who left";
  EXPECT_EQ(pushes[0].to, connection(2));
  EXPECT_EQ(pushes[0].kind, Kind::left);
  EXPECT_EQ(pushes[0].fields, (std::vector<std::string>{"0", "42"}));
  run(10s, {2});
  EXPECT_TRUE(told().empty());
  EXPECT_EQ(table.present(), 1u);
}

TEST_F(Table, WhoIsSilentIsNamedAfterTwoSeconds) {
  enter_all();
  run(1s, {0, 1, 2});
  run(2s, {0, 2});
  EXPECT_TRUE(told().empty()) << "two seconds are allowed";
  run(100ms, {0, 2});
  const auto pushes = told();
  ASSERT_EQ(pushes.size(), 3u) << "it is told too, for when it goes on";
  for (const Push& push : pushes) {
    EXPECT_EQ(push.kind, Kind::silent);
    EXPECT_EQ(push.fields[0], "1");
    EXPECT_EQ(cause_in(push),
              cause_about_1(Cause::Kind::silent, 7, -1,
                            "stopped answering: nothing came from it for 2.1 s of 2.0 s allowed; its host doesn't "
                            "answer either: it is down, or the network between is cut; its last heartbeat reported "
                            "collective 7; LOCKSTEP_LIVENESS=10 allows it 10 s, off waits for such a rank"))
        << text_of(push);
  }
  run(10s, {0, 1, 2});
  table.ended(connection(1));
  EXPECT_TRUE(told().empty()) << "it failed once";
}

TEST_F(Table, TheKernelsWordSaysWhy) {
  enter_all(4);
  states = {{101, ProcessState::stopped}, {102, ProcessState::gone}, {103, ProcessState::running}};
  answering = {connection(2)};
  run(2100ms, {0});
  std::map<std::string, std::string> texts;
  for (const Push& push : told()) {
    if (push.to == connection(0)) texts[push.fields[0]] = text_of(push);
  }
  expect_text(texts["1"], {"is stopped (SIGSTOP or Ctrl-Z): 'kill -CONT 101'"});
  expect_text(texts["2"], {"a child of it holds the connection open"});
  expect_text(texts["3"], {"does not run"});
}

TEST_F(Table, AMemberThatIsSilentIsNudgedOnceToSeeWhetherItsHostAnswers) {
  enter_all();
  answering = {connection(1)};
  run(1s, {0});
  EXPECT_TRUE(table.take_pushes().empty());
  run(100ms, {0});
  const auto nudges = table.take_pushes();
  ASSERT_EQ(nudges.size(), 2u);
  for (const Push& nudge : nudges) {
    EXPECT_EQ(nudge.kind, Kind::nudge);
    EXPECT_TRUE(nudge.fields.empty());
  }
  EXPECT_EQ(nudges[0].to, connection(1));
  EXPECT_EQ(nudges[1].to, connection(2));
  run(900ms, {0});
  EXPECT_TRUE(table.take_pushes().empty()) << "once";
  run(100ms, {0});
  std::map<std::string, std::string> texts;
  for (const Push& push : table.take_pushes()) texts[push.fields.at(0)] = text_of(push);
  expect_text(texts["1"], {"its host still answers"});
  expect_text(texts["2"], {"its host doesn't answer either"});
}

TEST_F(Table, TimeInWhichTheObserverDidNotRunIsNobodysSilence) {
  enter_all();
  run(1s, {0, 1, 2});
  stop(1h);
  run(1s, {0, 1, 2});
  EXPECT_TRUE(told().empty());
  // And one that is silent all the while is found, by what was observed.
  for (int i = 0; i < 8; ++i) {
    stop(5s);
    run(100ms, {0, 2});
    ASSERT_EQ(table.heartbeat(connection(0), 7, ""), std::nullopt);
    ASSERT_EQ(table.heartbeat(connection(2), 7, ""), std::nullopt);
    ASSERT_TRUE(told().empty()) << i;
  }
  run(1s, {0, 2});
  const auto pushes = told();
  ASSERT_EQ(pushes.size(), 3u);
  EXPECT_EQ(pushes[0].fields[0], "1");
}

TEST_F(Table, AClockThatGoesBackwardsIsNoTime) {
  enter_all();
  run(1s, {0, 1, 2});
  now -= 10s;
  table.observe(now);
  run(2s);
  EXPECT_TRUE(told().empty());
}

TEST_F(Table, WhoSaysThatItIsTracedIsNeverSilentUntilItSaysOtherwise) {
  enter_all();
  ASSERT_EQ(table.heartbeat(connection(1), 7, "traced"), std::nullopt);
  run(1h, {0, 2});
  EXPECT_TRUE(told().empty());
  ASSERT_EQ(table.heartbeat(connection(1), 7, ""), std::nullopt);
  run(2100ms, {0, 2});
  EXPECT_EQ(told().size(), 3u);
}

TEST_F(Table, WhomTheKernelCallsTracedIsNotSilentAndGetsTimeAfterwards) {
  enter_all();
  states[101] = ProcessState::traced;
  run(1min, {0, 2});
  EXPECT_TRUE(told().empty());
  states[101] = ProcessState::running;
  run(1s, {0, 2});
  EXPECT_TRUE(told().empty());
  run(1s, {0, 1, 2});
  run(1h, {0, 1, 2});
  EXPECT_TRUE(told().empty());
}

TEST_F(Table, WithoutLivenessNobodyIsSilentButMayBeLost) {
  ASSERT_EQ(register_member(0, 2), std::nullopt);
  ASSERT_EQ(register_member(1, 2, "s", "liveness=off"), std::nullopt);
  run(1h, {0});
  EXPECT_TRUE(told().empty());
  table.ended(connection(1));
  EXPECT_EQ(told().size(), 1u);
}

TEST_F(Table, TheLimitIsAnOption) {
  table = MembershipTable({.silence = 500ms}, {.process = [](const ProcessInfo&) { return ProcessState::unknown; }});
  table.observe(now);
  enter_all();
  run(500ms);
  EXPECT_TRUE(told().empty());
  run(100ms);
  EXPECT_EQ(told().size(), 9u);
}

TEST_F(Table, AReportIsPassedOn) {
  enter_all();
  ASSERT_EQ(table.report(connection(2), "no space left\non disk"), std::nullopt);
  const auto pushes = told();
  ASSERT_EQ(pushes.size(), 3u);
  EXPECT_EQ(pushes[0].kind, Kind::failed);
  EXPECT_EQ(text_of(pushes[0]), "rank 2 (host n1, pid 102) failed: no space left on disk");
  table.ended(connection(2));
  EXPECT_TRUE(told().empty()) << "its end is not a second failure";
}

TEST_F(Table, AnAccusationIsPassedOnAndItsReportersEndIsNone) {
  enter_all(4);
  const Cause late{.kind = Cause::Kind::timeout, .rank = 3, .reporter = 9, .sequence = 41, .text = "rank 3 is late"};
  ASSERT_EQ(table.report(connection(1), encode(late)), std::nullopt);
  const auto pushes = told();
  ASSERT_EQ(pushes.size(), 4u);
  Cause filed = late;
  filed.reporter = 1;  // whatever it says itself
  EXPECT_EQ(decode_cause(pushes[0].fields[2]), filed);
  EXPECT_EQ(causes(), std::vector<Cause>{filed});
  ASSERT_EQ(table.report(connection(2), encode(late)), std::nullopt);
  EXPECT_TRUE(told().empty()) << "a witness of what all know";
  EXPECT_EQ(causes().size(), 1u);
  table.ended(connection(1));
  table.ended(connection(2));
  EXPECT_TRUE(told().empty()) << "their ends are consequences";
  EXPECT_TRUE(causes().empty());
  table.ended(connection(3));
  ASSERT_EQ(causes().size(), 1u);
}

TEST_F(Table, AFailureThatTheGroupSurvivesIsForTheHostAlone) {
  enter_all(3);
  const Cause full{.kind = Cause::Kind::failed, .rank = 1, .ends_group = false, .text = "the disk is full"};
  ASSERT_EQ(table.report(connection(1), encode(full)), std::nullopt);
  EXPECT_TRUE(told().empty());
  ASSERT_EQ(causes().size(), 1u);
  table.ended(connection(1));
  EXPECT_FALSE(told().empty()) << "it is here still, and its end is a loss";
}

TEST_F(Table, TheHostHearsThatAllHaveRegistered) {
  for (int rank = 0; rank < 2; ++rank) ASSERT_EQ(register_member(rank, 3), std::nullopt);
  EXPECT_TRUE(table.take_news().empty());
  ASSERT_EQ(register_member(2, 3), std::nullopt);
  const auto news = table.take_news();
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].world_size, 3);
  EXPECT_FALSE(news[0].cause);
}

TEST_F(Table, AReportAboutNoRankOfTheWorldIsRefused) {
  enter_all(3);
  EXPECT_NE(table.report(connection(1), encode(Cause{.rank = 3, .text = "x"})), std::nullopt);
  EXPECT_NE(table.report(connection(1), encode(Cause{.rank = -2, .text = "x"})), std::nullopt);
  EXPECT_TRUE(told().empty());
}

// A process on this host whose cable is cut ends for it, and its end does not cross the cable either.
TEST_F(Table, AnEndBehindACutCableIsNoChildsDoing) {
  enter_all(2);
  states = {{101, ProcessState::gone}};
  run(2100ms, {0});
  const auto pushes = told();
  ASSERT_FALSE(pushes.empty());
  expect_text(text_of(pushes.back()), {"its process has ended, and the network to its host is cut"});
}

TEST_F(Table, FailuresAreNumberedAndWhoComesLateGetsThoseBefore) {
  ASSERT_EQ(register_member(0, 4), std::nullopt);
  ASSERT_EQ(register_member(1, 4), std::nullopt);
  ASSERT_EQ(register_member(2, 4), std::nullopt);
  ASSERT_EQ(table.goodbye(connection(0), 3), std::nullopt);
  table.ended(connection(2));
  ASSERT_EQ(table.report(connection(1), "then I"), std::nullopt);
  run(100ms, {1});
  told();
  ASSERT_EQ(register_member(3, 4), std::nullopt);
  const auto pushes = told();
  ASSERT_EQ(pushes.size(), 3u);
  EXPECT_EQ(pushes[0].kind, Kind::lost);
  EXPECT_EQ(pushes[0].fields[0], "2");
  EXPECT_EQ(pushes[0].fields[1], "1");
  EXPECT_EQ(pushes[1].kind, Kind::failed);
  EXPECT_EQ(pushes[1].fields[0], "1");
  EXPECT_EQ(pushes[1].fields[1], "2");
  EXPECT_EQ(pushes[2].kind, Kind::left);
  EXPECT_EQ(pushes[2].fields, (std::vector<std::string>{"0", "3"}));
  for (const Push& push : pushes) EXPECT_EQ(push.to, connection(3));
}

TEST_F(Table, OnlyTheFirstFailuresAreTold) {
  enter_all(100);
  for (int rank = 1; rank < 100; ++rank) table.ended(connection(rank));
  std::size_t told_to_0 = 0;
  for (const Push& push : told()) told_to_0 += push.to == connection(0) ? 1 : 0;
  EXPECT_EQ(told_to_0, static_cast<std::size_t>(kMostFailures));
  // A member that was only silent is told of itself, whatever went before.
  ASSERT_EQ(table.give_up(connection(0), encode(Cause{.kind = Cause::Kind::silent, .text = "hangs"})), std::nullopt);
  const auto last = told();
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last.front().to, connection(0));
  EXPECT_EQ(last.front().kind, Kind::silent);
}

TEST_F(Table, ADuplicateIsRefusedAndBothAreNamed) {
  ASSERT_EQ(register_member(1), std::nullopt);
  EXPECT_EQ(
      table.register_member(99, "s", "1", "3", encode({.host = "n2", .pid = 5, .boot_id = "c"}), ""),
      "two processes are rank 1: rank 1 (host n1, pid 101), which is here; and rank 1 (host n2, pid 5); give each "
      "process its own RANK");
  table.ended(99);
  EXPECT_TRUE(told().empty()) << "who was refused is not a member";
  // Also when the first has gone: it was a member of this meeting.
  ASSERT_EQ(table.goodbye(connection(1), 0), std::nullopt);
  expect_text(register_member(1, 3, "s", "", 98).value_or(""), {"rank 1 (host n1, pid 101), which has left"});
  EXPECT_EQ(register_member(1, 3, "another scope"), std::nullopt);
}

TEST_F(Table, WhatIsNoMemberIsRefusedWithTheReason) {
  const std::string good = encode(process_of(0));
  expect_text(table.register_member(1, "", "0", "2", good, "").value_or(""), {"scope"});
  expect_text(table.register_member(1, std::string(2000, 's'), "0", "2", good, "").value_or(""), {"scope"});
  for (const auto* rank : {"2", "-1", "x", "", "1.5", "99999999999999999999"}) {
    EXPECT_TRUE(contains(table.register_member(1, "s", rank, "2", good, "").value_or(""), "is not a rank")) << rank;
  }
  for (const auto* world : {"0", "-1", "x", "", "99999999"}) {
    EXPECT_TRUE(contains(table.register_member(1, "s", "0", world, good, "").value_or(""), "world size")) << world;
  }
  for (const auto* process :
       {"", "host", "host n1\n", "host n1\npid x\nboot_id b\n", "host n\x01\npid 1\nboot_id b\n"}) {
    EXPECT_TRUE(contains(table.register_member(1, "s", "0", "2", process, "").value_or(""), "describe")) << process;
  }
  for (const auto* options : {"colour", "liveness=on", " liveness=off colour", "liveness=offf"}) {
    EXPECT_TRUE(contains(table.register_member(1, "s", "0", "2", good, options).value_or(""), "is unknown")) << options;
  }
  EXPECT_EQ(table.size(), 0u);
  ASSERT_EQ(register_member(0), std::nullopt);
  expect_text(register_member(1, 4).value_or(""), {"the members before it said 3"});
  expect_text(register_member(1, 3, "s", "", connection(0)).value_or(""), {"already"});
}

TEST_F(Table, WhoIsNoMemberCantSayAnything) {
  const std::string refused = "this connection is not a member's: REGISTER comes first, and nothing after GOODBYE";
  EXPECT_EQ(table.heartbeat(1, 0, ""), refused);
  EXPECT_EQ(table.goodbye(1, 0), refused);
  EXPECT_EQ(table.report(1, "x"), refused);
  enter_all();
  ASSERT_EQ(table.goodbye(connection(1), 0), std::nullopt);
  EXPECT_NE(table.heartbeat(connection(1), 0, ""), std::nullopt);
  EXPECT_NE(table.goodbye(connection(1), 0), std::nullopt);
}

TEST_F(Table, ScopesKnowNothingOfEachOther) {
  ASSERT_EQ(register_member(0, 2, "a"), std::nullopt);
  ASSERT_EQ(register_member(1, 2, "b"), std::nullopt);
  table.ended(connection(0));
  EXPECT_TRUE(told().empty());
}

TEST_F(Table, AScopeThatIsOverIsForgotten) {
  for (int job = 0; job < 1000; ++job) {
    const std::string scope = "job " + std::to_string(job);
    for (int rank = 0; rank < 3; ++rank) ASSERT_EQ(register_member(rank, 3, scope), std::nullopt);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == 1)
        table.ended(connection(rank));
      else
        ASSERT_EQ(table.goodbye(connection(rank), 1), std::nullopt);
    }
    run(100ms);
    told();
  }
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.present(), 0u);
}

TEST_F(Table, AFullTableMakesRoomWhereNobodyIsConnectedAndElseRefuses) {
  table = MembershipTable({.max_members = 4}, {.process = [](const ProcessInfo&) { return ProcessState::unknown; }});
  for (int rank = 0; rank < 2; ++rank) ASSERT_EQ(register_member(rank, 3, "a"), std::nullopt);
  for (int rank = 3; rank < 5; ++rank) ASSERT_EQ(register_member(rank, 8, "b"), std::nullopt);
  EXPECT_EQ(register_member(5, 8, "b"), "the store knows 4 members, the limit is 4");
  table.ended(connection(0));
  table.ended(connection(1));
  EXPECT_EQ(register_member(5, 8, "b"), std::nullopt) << "nobody of scope a is here";
  EXPECT_EQ(table.size(), 3u);
}

TEST(MemberInfo, IsReadAsWritten) {
  const auto self = ProcessInfo::of_this_process();
  EXPECT_EQ(decode_process_info(encode(self)), self);
  EXPECT_EQ(state_of(self, self), process_state(self.pid));
  ProcessInfo elsewhere = self;
  elsewhere.boot_id = "another";
  EXPECT_EQ(state_of(elsewhere, self), ProcessState::unknown) << "its pid means nothing here";
  elsewhere = self;
  elsewhere.pid_namespace = "another";
  EXPECT_EQ(state_of(elsewhere, self), ProcessState::unknown);
  elsewhere.pid_namespace.clear();
  EXPECT_EQ(state_of(elsewhere, self), ProcessState::unknown);
}

TEST(MemberInfo, AHostNameThatCannotBePrintedIsNoReasonToBeRefused) {
  ProcessInfo odd{.host = "n\x01\xc3\xa4", .pid = 3, .boot_id = "b"};
  const auto read = decode_process_info(encode(odd));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->host, "n???");
}

TEST(MemberInfo, LinesOfALaterVersionArePassedOver) {
  const auto read = decode_process_info("host n1\npid 4\nboot_id b\npid_namespace 5\ncolour blue\n");
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->pid, 4);
}

TEST_F(Table, ListsTheConnectionsOfTheSilentUntilTheyEnd) {
  enter_all();
  run(3s, {0});
  EXPECT_EQ(table.given_up().size(), 2u);
  EXPECT_EQ(table.given_up(), (std::vector{std::pair(connection(1), 1), std::pair(connection(2), 2)}));
  ASSERT_EQ(table.heartbeat(connection(1), 8, ""), std::nullopt);
  EXPECT_EQ(table.given_up().size(), 2u) << "who was given up and comes back is given up";
  ASSERT_EQ(table.goodbye(connection(1), 8), std::nullopt);
  EXPECT_EQ(table.given_up(), (std::vector{std::pair(connection(2), 2)}));
  table.ended(connection(2));
  EXPECT_EQ(table.given_up().size(), 0u);
  EXPECT_TRUE(table.given_up().empty());
}

}  // namespace
}  // namespace lockstep::membership::membership_table_test
