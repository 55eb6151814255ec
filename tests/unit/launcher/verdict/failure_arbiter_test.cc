// SPDX-License-Identifier: Apache-2.0
// The verdict over several hosts. Which rank is the root is root_cause_test.cc's.
#include "launcher/verdict/failure_arbiter.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <regex>

#include "launcher/process/stacks.h"
#include "runtime/job/exit_code.h"

namespace lockstep::launcher::failure_arbiter_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Verdict : public ::testing::Test {
 protected:
  Verdict()
      : hosts_(with_first_ranks({{.name = "a", .ranks = 2}, {.name = "b", .ranks = 2}, {.name = "c", .ranks = 1}})),
        verdict_({.hosts = hosts_,
                  .facts = [](int rank) { return RankFacts{.rank = rank, .host = "?"}; },
                  .on_conclusion = [this](const VerdictRecord& record) { record_ = record; }}) {}

  void end(int rank, ExitStatus ending, std::vector<std::string> last_lines = {}) {
    RankEnd end;
    end.rank = rank;
    end.host = hosts_[static_cast<std::size_t>(node_of(hosts_, rank))].name;
    end.pid = 1000 + rank;
    end.ending = ending;
    end.last_lines = std::move(last_lines);
    verdict_.rank_ended(std::move(end));
  }
  // Texts of what was said since the last call, with T for the time since the start; whether the ranks are to end is
  // kept.
  std::vector<std::string> said() {
    std::vector<std::string> texts;
    for (const Order& order : verdict_.take_orders()) {
      if (order.kind == Order::Kind::say || order.kind == Order::Kind::detail) {
        texts.push_back(
            std::regex_replace(order.text, std::regex(R"(\d+\.\d s after the start)"), "T s after the start"));
      }
      if (order.kind == Order::Kind::end_ranks) ++ends_;
      if (order.kind == Order::Kind::pass_on) ++passes_;
      if (order.kind == Order::Kind::kill) ++kills_;
    }
    return texts;
  }
  void expect_lost_host(int node, const std::string& host) {
    EXPECT_EQ(record_.outcome, VerdictRecord::Outcome::host_lost);
    EXPECT_EQ(record_.lost_host, std::pair(node, host));
    EXPECT_EQ(record_.exit_code, kExitPeerLost);
    EXPECT_FALSE(record_.first);
    EXPECT_FALSE(verdict_.again());
  }

  RankMap hosts_;
  VerdictRecord record_;
  FailureArbiter verdict_;
  int ends_ = 0;
  int passes_ = 0;
  int kills_ = 0;
};

constexpr ExitStatus kLostAnother{.value = kExitPeerLost};

TEST_F(Verdict, OfWhatFollowsAStandstillOfTheFirstHostNamesThatHostAndNoRank) {
  verdict_.stood_still(std::chrono::milliseconds(5200));
  EXPECT_FALSE(verdict_.is_given()) << "nobody may have minded";
  verdict_.heard({.kind = Cause::Kind::failed, .rank = 3, .reporter = 3, .text = "rank 3 failed"});
  verdict_.host_lost(2, "is gone: its launcher (pid 7) has ended");
  end(3, {.value = 1});
  EXPECT_THAT(said(),
              ElementsAre("host a (node rank 0) stood still for 5.2 s (its launcher was stopped, or got no core), and "
                          "the other hosts took this host for lost, T s after the start; ending the other 5 ranks",
                          "host c (node rank 2) is gone: its launcher (pid 7) has ended"));
  EXPECT_EQ(ends_, 1);
  verdict_.conclude(0);
  expect_lost_host(0, "a");
}

TEST_F(Verdict, AStandstillBesideASignalIsForTheSignal) {
  verdict_.signalled(SIGTERM);
  verdict_.stood_still(std::chrono::milliseconds(5200));
  for (int rank = 0; rank < 5; ++rank) end(rank, {.by_signal = true, .value = SIGTERM});
  verdict_.conclude(0);
  EXPECT_EQ(verdict_.exit_code(), 128 + SIGTERM);
}

TEST_F(Verdict, NamesTheRankItsHostAndItsLastLinesAndThenTheConsequences) {
  end(3, {.value = 42}, {"it broke", "badly"});
  EXPECT_THAT(said(), ElementsAre("rank 3 (host b, pid 1003) exited with code 42 T s after the start; ending the other "
                                  "4 ranks",
                                  "  the end of its stderr:", "  | it broke", "  | badly"));
  EXPECT_EQ(ends_, 1);
  end(0, kLostAnother);
  end(1, kLostAnother);
  end(2, {.by_signal = true, .value = SIGTERM});
  end(4, kLostAnother);
  EXPECT_THAT(said(), IsEmpty());
  verdict_.conclude(0);
  EXPECT_EQ(verdict_.exit_code(), 42);
  EXPECT_FALSE(verdict_.again());
  EXPECT_THAT(said(),
              ElementsAre("  after it: ranks 0 and 1 (host a (node rank 0)): exited with code 75: it lost another rank",
                          "  after it: rank 2 (host b (node rank 1)): was killed by signal 15 (SIGTERM)",
                          "  after it: rank 4 (host c (node rank 2)): exited with code 75: it lost another rank",
                          "rank 3 failed first: it exited with code 42; 4 other ranks ended after it; exit code 42"));
}

TEST(StopVerdict, WhoHoldsTheOthersUpIsNamedBeforeTheyEndByTheSignal) {
  const auto member = [](int rank, std::int64_t sequence) {
    return membership::MemberView{.info = {.rank = rank, .world_size = 4, .process = {.host = "b", .pid = 100 + rank}},
                                  .position = {.sequence = sequence, .collective = "all_reduce", .step = sequence}};
  };
  FailureArbiter verdict({.hosts = with_first_ranks({{.name = "a", .ranks = 2}, {.name = "b", .ranks = 2}}),
                          .stop_timeout = std::chrono::nanoseconds(10),
                          .members =
                              [&] {
                                return std::vector{member(0, 8), member(1, 8), member(2, 7)};
                              },
                          .facts = [](int rank) { return RankFacts{.rank = rank, .host = "b", .pid = 100 + rank}; }});
  EXPECT_FALSE(verdict.due());
  verdict.signalled(SIGTERM);
  verdict.told({.world_size = 4, .cause = Cause{.kind = Cause::Kind::stopped, .rank = 1, .reporter = 1}});
  ASSERT_TRUE(verdict.due());
  while (!verdict.due()->expired()) {
  }
  verdict.take_orders();
  verdict.check_timers();
  const auto orders = verdict.take_orders();
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(
      orders[0].text,
      "0.0 s after SIGTERM no step has ended for all to stop, and after 0.0 s the ranks end by the signal: rank 3 "
      "(host b, pid "
      "103) is in no group of all ranks; rank 2 (host b, pid 102) holds the others up: the last that it started is "
      "collective 7 (all_reduce, step 7); rank 0 has started collective 8 (all_reduce, step 8)");
  EXPECT_FALSE(verdict.due());
}

TEST_F(Verdict, ALostHostIsToldFromALostRank) {
  verdict_.host_lost(1, "is gone: its launcher (pid 7) has ended");
  EXPECT_THAT(said(), ElementsAre("host b (node rank 1) is gone: its launcher (pid 7) has ended, T s after the start; "
                                  "ending the other 3 ranks"));
  EXPECT_EQ(ends_, 1);
  for (const int rank : {0, 1, 4}) end(rank, kLostAnother);
  verdict_.conclude(0);
  expect_lost_host(1, "b");
  EXPECT_EQ(record_.consequences.size(), 3u);
  EXPECT_THAT(said(), Contains("host b (node rank 1) was lost first; 3 ranks ended after it; exit code 75"));
}

TEST_F(Verdict, AHostThatIsLostAfterARankFailedIsAConsequence) {
  end(0, {.value = 3});
  said();
  verdict_.host_lost(2, "is gone: its launcher (pid 7) has ended");
  EXPECT_THAT(said(), ElementsAre("host c (node rank 2) is gone: its launcher (pid 7) has ended"));
  verdict_.host_lost(2, "is gone: its launcher (pid 7) has ended");
  EXPECT_THAT(said(), IsEmpty()) << "once";
  for (const int rank : {1, 2, 3}) end(rank, kLostAnother);
  verdict_.conclude(0);
  EXPECT_EQ(record_.outcome, VerdictRecord::Outcome::failed);
  EXPECT_EQ(record_.first.value().rank.rank, 0);
  EXPECT_EQ(verdict_.exit_code(), 3);
  EXPECT_FALSE(verdict_.again());
  EXPECT_EQ(ends_, 1);
}

// Its ranks are heard of first: the ranks' silence and the agent's are a heartbeat apart.
TEST_F(Verdict, AHostThatIsLostWhileItsRankIsJudgedIsTheRoot) {
  verdict_.heard({.kind = Cause::Kind::silent, .rank = 2, .host = "b", .text = "rank 2 (host b) stopped answering"});
  EXPECT_TRUE(verdict_.due());
  EXPECT_THAT(said(), IsEmpty());
  verdict_.host_lost(1, "is gone: its launcher (pid 7) does not answer");
  EXPECT_THAT(said(), ElementsAre(HasSubstr("host b (node rank 1) is gone")));
  EXPECT_FALSE(verdict_.due());
  verdict_.conclude(0);
  expect_lost_host(1, "b");
}

// A rank that hangs on host b, whose process the launcher started behind a wrapper.
class HungVerdict : public Verdict {
 protected:
  // Heard of it, and waited for whoever else may be the root: has its stacks taken.
  Order judged() {
    verdict_.heard({.kind = Cause::Kind::silent, .rank = 3, .host = "b", .pid = 71, .text = "rank 3 (host b) hangs"});
    std::vector<Order> orders;
    while (orders.empty()) {
      verdict_.check_timers();
      orders = verdict_.take_orders();
    }
    EXPECT_EQ(orders.size(), 1u);
    return orders.front();
  }
};

TEST_F(HungVerdict, HasItsHostsLauncherTakeItsStacksAndSaysWhereItIs) {
  const Order order = judged();
  EXPECT_EQ(order.kind, Order::Kind::take_stacks);
  EXPECT_EQ(order.rank, 3);
  EXPECT_EQ(order.pid, 71) << "the member's process, not the wrapper's";
  EXPECT_EQ(order.question, 0);
  end(0, kLostAnother);
  EXPECT_THAT(said(), IsEmpty()) << "it is to be looked at before it is ended";
  ASSERT_TRUE(verdict_.due());
  EXPECT_GT(verdict_.due()->remaining(), kHungLimit);
  verdict_.stacks_taken({"Thread 1:", "#0  main"});
  // The cause's own text: the store has seen it, and it says it all.
  EXPECT_THAT(said(), ElementsAre("rank 3 (host b) hangs; ending the other 3 ranks",
                                  "  where it is:", "  | Thread 1:", "  | #0  main"));
  EXPECT_EQ(ends_, 1);
  EXPECT_FALSE(verdict_.due());
  verdict_.stacks_taken({"late"});
  EXPECT_THAT(said(), IsEmpty());
}

TEST_F(HungVerdict, SaysNothingOfWhereWhereNothingCanBeTold) {
  judged();
  verdict_.stacks_taken({});
  EXPECT_THAT(said(), ElementsAre(HasSubstr("rank 3 (host b) hangs")));
  EXPECT_EQ(ends_, 1);
}

TEST_F(HungVerdict, WaitsForNoLauncherThatIsLost) {
  judged();
  verdict_.host_lost(1, "is gone: its launcher (pid 7) does not answer");
  EXPECT_THAT(said(), ElementsAre(HasSubstr("rank 3 (host b) hangs"),
                                  "  where it is: the launcher of host b (node rank 1) has not told yet",
                                  "host b (node rank 1) is gone: its launcher (pid 7) does not answer"));
  EXPECT_EQ(ends_, 1);
}

TEST_F(HungVerdict, IsGivenWithoutItsStacksAtASignal) {
  judged();
  verdict_.signalled(SIGTERM);
  EXPECT_THAT(said(), ElementsAre(HasSubstr("rank 3 (host b) hangs"), HasSubstr("has not told yet"),
                                  HasSubstr("SIGTERM: passed on to ")));
  EXPECT_EQ(ends_, 1);
  EXPECT_EQ(passes_, 1);
}

TEST_F(Verdict, AStopIsPassedOnAndTheSecondOneKills) {
  verdict_.signalled(SIGTERM);
  EXPECT_THAT(said(), ElementsAre("SIGTERM: passed on to 5 ranks; send the signal again to kill the ranks"));
  verdict_.signalled(SIGTERM);
  EXPECT_THAT(said(), ElementsAre("second SIGTERM: killing 5 ranks"));
  verdict_.signalled(SIGTERM);
  EXPECT_THAT(said(), IsEmpty());
  EXPECT_EQ(passes_, 1);
  EXPECT_EQ(kills_, 1);
  for (int rank = 0; rank < 5; ++rank) end(rank, {.by_signal = true, .value = SIGKILL});
  verdict_.conclude(0);
  EXPECT_EQ(verdict_.exit_code(), 128 + SIGTERM);
  EXPECT_FALSE(verdict_.again());
  EXPECT_EQ(said().back(), "stopped by SIGTERM; exit code 143");
}

// The verdict as data, and the JSON made of it.
class Conclusion : public ::testing::Test {
 protected:
  Conclusion()
      : verdict_({.hosts = with_first_ranks({{.name = "a", .ranks = 2}, {.name = "b", .ranks = 1}}),
                  .members =
                      [] {
                        return std::vector{
                            membership::MemberView{.info = {.rank = 2, .world_size = 3}, .position = {.step = 17}}};
                      },
                  .facts = [](int rank) { return RankFacts{.rank = rank, .host = "?"}; },
                  .on_conclusion = [this](const VerdictRecord& record) { record_ = record; }}) {}

  void end(int rank, ExitStatus ending, std::int64_t memory_kills = 0) {
    RankEnd end;
    end.rank = rank;
    end.host = rank < 2 ? "a" : "b";
    end.pid = 1000 + rank;
    end.ending = ending;
    end.memory_kills = memory_kills;
    end.saved_step = saved_step_;
    end.last_lines = {"the \xff end"};
    verdict_.rank_ended(std::move(end));
  }
  nlohmann::json json(int exit_code) {
    verdict_.conclude(0);
    EXPECT_EQ(verdict_.exit_code(), exit_code);
    return nlohmann::json::parse(as_json(record_, "run-1", 3));
  }

  std::optional<std::int64_t> saved_step_;
  VerdictRecord record_;
  FailureArbiter verdict_;
};

TEST_F(Conclusion, SaysWhichStepIsSavedAndHowToResume) {
  saved_step_ = 65;
  end(2, {.by_signal = true, .value = SIGSEGV});
  end(0, kLostAnother);
  end(1, kLostAnother);
  const auto verdict = json(139);
  EXPECT_THAT(verdict_.take_orders().back().text,
              HasSubstr("; exit code 139; step 65 is saved: run the same command to resume"));
  EXPECT_EQ(verdict["saved_step"], 65);
  EXPECT_EQ(verdict["hint"], "step 65 is saved: run the same command to resume");
}

TEST_F(Conclusion, OfTheSameErrorOnAllRanksBlamesNone) {
  for (const int rank : {1, 0, 2}) {
    verdict_.heard({.kind = Cause::Kind::failed, .rank = rank, .reporter = rank, .text = "no such file"});
    end(rank, {.value = 1});
    EXPECT_EQ(verdict_.take_orders().empty(), rank != 2) << "the others may report the same";
  }
  const auto verdict = json(1);
  EXPECT_EQ(verdict["summary"], "all 3 ranks failed with the same error: no such file; exit code 1");
  EXPECT_TRUE(verdict["first_failure"]["rank"].is_null());
  EXPECT_EQ(verdict["first_failure"]["cause"], "no such file");
  EXPECT_TRUE(verdict["hint"].is_null());
  EXPECT_TRUE(verdict["saved_step"].is_null());
}

TEST_F(Conclusion, OfTheSameErrorOnAllRanksWantsTheProgramMended) {
  saved_step_ = 65;
  for (const int rank : {1, 0, 2}) {
    verdict_.heard({.kind = Cause::Kind::failed, .rank = rank, .reporter = rank, .text = "no such file"});
    end(rank, {.value = 1});
  }
  EXPECT_EQ(json(1)["hint"], "step 65 is saved: mend the program, then run the same command to resume");
}

TEST_F(Conclusion, OfOneErrorUnderEachRanksOwnNameBlamesNone) {
  for (const int rank : {1, 0, 2}) {
    Cause cause{.kind = Cause::Kind::failed, .rank = rank, .reporter = rank, .host = "a", .pid = 1000 + rank};
    cause.text = "no such file";
    if (rank != 2) cause.text = fmt::format("rank {} (host a, pid {}) failed in step 0: no such file", rank, cause.pid);
    verdict_.heard(cause);
    end(rank, {.value = 1});
  }
  EXPECT_EQ(json(1)["summary"], "all 3 ranks failed with the same error: failed in step 0: no such file; exit code 1");
}

TEST_F(Conclusion, OfAFailureHasTheFirstRankAndItsConsequences) {
  end(2, {.by_signal = true, .value = SIGKILL}, 2);
  EXPECT_THAT(verdict_.take_orders()[1].text,
              HasSubstr("memory ran out: the kernel has killed 2 processes of this control group on host b"));
  end(0, kLostAnother);
  end(1, {.by_signal = true, .value = SIGTERM});
  const auto verdict = json(137);
  EXPECT_EQ(verdict["run_id"], "run-1");
  EXPECT_EQ(verdict["start"], 3);
  EXPECT_EQ(verdict["starts_again"], false);
  EXPECT_EQ(verdict["outcome"], "failed");
  EXPECT_THAT(verdict["summary"].get<std::string>(), HasSubstr("rank 2 failed first"));
  EXPECT_EQ(verdict["exit_code"], 137);
  const auto& first = verdict["first_failure"];
  EXPECT_EQ(first["rank"], 2);
  EXPECT_EQ(first["host"], "b");
  EXPECT_EQ(first["pid"], 1002);
  EXPECT_EQ(first["ending"], "was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(first["signal"], "SIGKILL");
  EXPECT_TRUE(first["exit_code"].is_null());
  EXPECT_EQ(first["step"], 17) << "by its last heartbeat";
  EXPECT_TRUE(first["bucket"].is_null());
  EXPECT_EQ(first["memory_kills"], 2);
  EXPECT_EQ(first["last_lines"], nlohmann::json::array({"the \xef\xbf\xbd end"}));
  ASSERT_EQ(verdict["consequences"].size(), 2u);
  EXPECT_EQ(verdict["consequences"][0]["rank"], 0);
  EXPECT_EQ(verdict["consequences"][0]["exit_code"], 75);
  EXPECT_EQ(verdict["consequences"][1]["signal"], "SIGTERM");
  EXPECT_EQ(verdict["consequences"][1]["killed_by_launcher"], false);
}

// Its program does not reach the launcher's memory: only the store has seen its end.
TEST_F(Conclusion, OfARankThatWasLostBehindACommandThatReturned0IsAFailure) {
  const Cause lost{.kind = Cause::Kind::lost, .rank = 1, .host = "a", .pid = 4711, .text = "rank 1 is lost"};
  verdict_.heard(lost);
  end(1, {});
  end(0, kLostAnother);
  end(2, kLostAnother);
  const auto verdict = json(1);
  EXPECT_EQ(verdict["outcome"], "failed");
  EXPECT_EQ(verdict["first_failure"]["rank"], 1);
  EXPECT_TRUE(verdict["first_failure"]["exit_code"].is_null());
  EXPECT_EQ(verdict["first_failure"]["cause"], lost.text);
}

TEST_F(Conclusion, OfARankThatEndedWith0ItselfIsNone) {
  verdict_.heard({.kind = Cause::Kind::lost, .rank = 1, .host = "a", .pid = 1001});
  for (int rank = 0; rank < 3; ++rank) end(rank, {});
  EXPECT_EQ(json(0)["outcome"], "finished");
}

TEST_F(Conclusion, OfAReportHasWhatWasSaid) {
  verdict_.heard(
      {.kind = Cause::Kind::failed, .rank = 1, .reporter = 1, .step = 4, .bucket = 2, .text = "loss is nan"});
  end(1, {.value = 3});
  end(0, kLostAnother);
  end(2, kLostAnother);
  const auto verdict = json(3);
  const auto& first = verdict["first_failure"];
  EXPECT_EQ(first["step"], 4);
  EXPECT_EQ(first["bucket"], 2);
  EXPECT_EQ(first["cause"], "loss is nan");
  EXPECT_EQ(first["reported_by"], 1);
  EXPECT_EQ(first["exit_code"], 3);
}

TEST_F(Conclusion, OfALostHostNamesIt) {
  verdict_.host_lost(1, "is gone");
  end(0, kLostAnother);
  end(1, kLostAnother);
  const auto verdict = json(kExitPeerLost);
  EXPECT_EQ(verdict["outcome"], "host lost");
  EXPECT_EQ(verdict["lost_host"]["host"], "b");
  EXPECT_EQ(verdict["lost_host"]["node_rank"], 1);
  EXPECT_TRUE(verdict["first_failure"].is_null());
  EXPECT_EQ(verdict["consequences"].size(), 2u);
}

TEST_F(Conclusion, OfAJobThatEndedWell) {
  for (int rank = 0; rank < 3; ++rank) end(rank, {});
  const auto verdict = json(0);
  EXPECT_EQ(verdict["outcome"], "finished");
  EXPECT_EQ(verdict["summary"], "every rank ended with code 0");
  EXPECT_TRUE(verdict["consequences"].empty());
  EXPECT_TRUE(verdict["first_failure"].is_null());
}

TEST_F(Conclusion, OfAJobThatWasAskedToStop) {
  verdict_.signalled(SIGTERM);
  for (int rank = 0; rank < 3; ++rank) end(rank, {.by_signal = true, .value = SIGTERM});
  const auto verdict = json(143);
  EXPECT_EQ(verdict["outcome"], "stopped");
  EXPECT_EQ(verdict["summary"], "stopped by SIGTERM; exit code 143");
}

TEST_F(Conclusion, HasTheExitCodeOfTheCommand) {
  for (int rank = 0; rank < 3; ++rank) end(rank, {});
  verdict_.conclude(1);
  EXPECT_EQ(record_.exit_code, 1) << "output was lost, say";
}

TEST_F(Verdict, WithoutAFailureNothingIsSaid) {
  for (int rank = 0; rank < 5; ++rank) end(rank, {});
  verdict_.conclude(0);
  EXPECT_EQ(verdict_.exit_code(), 0);
  EXPECT_FALSE(verdict_.again());
  EXPECT_THAT(said(), IsEmpty());
}

TEST_F(Verdict, AComplaintOfALauncherIsTheExitCodeWhereTheRanksHaveNone) {
  for (int rank = 0; rank < 5; ++rank) end(rank, {});
  verdict_.conclude(1);
  EXPECT_EQ(verdict_.exit_code(), 1);
}

// What is of an earlier start, or of a group of some ranks, says nothing of this one.
class RestartVerdict : public ::testing::Test {
 protected:
  RestartVerdict() {
    for (int rank = 0; rank < 2; ++rank) {
      members_.push_back({.scope = "rendezvous/run/1/0", .info = {.rank = rank, .world_size = 2}});
    }
  }
  FailureArbiter verdict(RestartPolicy& restarts) {
    return FailureArbiter({.hosts = with_first_ranks({{.name = "a", .ranks = 2}}),
                           .scope = "rendezvous/run/1/",
                           .restarts = &restarts,
                           .members = [this] { return members_; },
                           .facts = [](int rank) { return RankFacts{.rank = rank, .host = "a", .pid = 100 + rank}; }});
  }
  static RankEnd end_of(int rank, ExitStatus ending) {
    RankEnd end;
    end.rank = rank;
    end.ending = ending;
    return end;
  }
  static std::vector<std::string> texts_of(FailureArbiter& verdict, Order::Kind kind = Order::Kind::say) {
    std::vector<std::string> texts;
    for (const Order& order : verdict.take_orders()) {
      if (order.kind == kind) texts.push_back(order.text);
    }
    return texts;
  }

  std::vector<membership::MemberView> members_;
};

TEST_F(RestartVerdict, ARankThatDiedAfterAStepIsStartedAgainWithTheStepsThatAreDone) {
  RestartPolicy restarts(1, false);
  auto judged = verdict(restarts);
  members_[0].position = {.step = 11, .steps_done = 57};
  judged.rank_ended(end_of(1, {.by_signal = true, .value = SIGKILL}));
  judged.rank_ended(end_of(0, kLostAnother));
  judged.conclude(0);
  ASSERT_TRUE(judged.again());
  EXPECT_EQ(judged.again()->count(), 0);
  EXPECT_THAT(texts_of(judged), Contains("restart 1 of 1 (--max-restarts); 57 steps done"));
}

TEST_F(RestartVerdict, StepsAreCountedAsRanksGoForTheStoreForgetsThem) {
  RestartPolicy restarts(1, false);
  auto judged = verdict(restarts);
  judged.told({.scope = "rendezvous/run/1/0",
               .world_size = 2,
               .cause = Cause{.kind = Cause::Kind::lost, .rank = 0},
               .position = {.step = 11, .steps_done = 57}});
  members_.clear();
  for (const int rank : {1, 0}) judged.rank_ended(end_of(rank, {.by_signal = true, .value = SIGKILL}));
  judged.conclude(0);
  EXPECT_TRUE(judged.again());
}

TEST_F(RestartVerdict, AStepThatNoHeartbeatHasSpokenOfCountsByTheLaunchersMemoryOfTheRank) {
  RestartPolicy restarts(2, false);
  for (const std::int64_t steps : {58, 59}) {
    auto judged = verdict(restarts);
    for (const int rank : {1, 0}) {
      RankEnd end = end_of(rank, {.by_signal = true, .value = SIGKILL});
      end.steps_done = rank == 1 ? steps : steps - 1;
      judged.rank_ended(std::move(end));
    }
    judged.conclude(0);
    ASSERT_TRUE(judged.again());
    EXPECT_EQ(judged.again()->count(), 0) << "a step further than the start before";
    EXPECT_THAT(texts_of(judged), Contains(HasSubstr(fmt::format("{} steps done", steps))));
  }
}

TEST_F(RestartVerdict, TheLastLineNamesTheFailureAndWhyItIsNotStartedAgain) {
  RestartPolicy restarts(1, false);
  auto judged = verdict(restarts);
  judged.rank_ended(end_of(1, {.value = 3}));
  judged.rank_ended(end_of(0, kLostAnother));
  judged.conclude(0);
  EXPECT_FALSE(judged.again());
  EXPECT_THAT(texts_of(judged).back(),
              ::testing::MatchesRegex("rank 1 failed first: .*; not started again: the job ran for .*"));
}

TEST_F(RestartVerdict, WhoAskedTheJobToStopGetsNoRestart) {
  RestartPolicy restarts(1, false);
  auto judged = verdict(restarts);
  members_[0].position = {.step = 11, .steps_done = 57};
  judged.signalled(SIGTERM);
  judged.rank_ended(end_of(1, {.value = 3}));
  judged.rank_ended(end_of(0, kLostAnother));
  judged.conclude(0);
  EXPECT_FALSE(judged.again());
  EXPECT_EQ(judged.exit_code(), 3);
}

TEST_F(RestartVerdict, WhatALauncherCouldNotEndKeepsRanksFromStartingBesideIt) {
  RestartPolicy restarts(1, false);
  auto judged = verdict(restarts);
  members_[0].position = {.step = 11, .steps_done = 57};
  judged.rank_ended(end_of(1, {.value = 3}));
  judged.rank_ended(end_of(0, kLostAnother));
  judged.conclude(1);
  EXPECT_FALSE(judged.again());
  EXPECT_EQ(judged.exit_code(), 3);
}

TEST_F(RestartVerdict, NewsOfAnotherStartAreNone) {
  RestartPolicy restarts(1, false);
  auto judged = verdict(restarts);
  const auto broken_in = [](const std::string& scope) {
    return membership::MemberNews{
        .scope = scope,
        .world_size = 2,
        .cause = Cause{.kind = Cause::Kind::silent, .rank = 1, .host = "a", .text = "rank 1 (host a) does not answer"}};
  };
  judged.told(broken_in("rendezvous/run/0/0"));
  EXPECT_FALSE(judged.due());
  judged.told(broken_in("rendezvous/run/1/0"));
  EXPECT_TRUE(judged.due());
}

TEST_F(RestartVerdict, AHostIsTakenInAfterAStepByAnAgreedStop) {
  RestartPolicy restarts(0, true);
  auto judged = verdict(restarts);
  judged.resize();
  EXPECT_THAT(texts_of(judged, Order::Kind::stop_to_resize), IsEmpty()) << "no step has been done";
  members_[1].position = {.step = 1, .steps_done = 1};
  judged.resize();
  judged.resize();
  EXPECT_EQ(texts_of(judged, Order::Kind::stop_to_resize).size(), 1u) << "once";
  for (int rank = 0; rank < 2; ++rank) {
    judged.told({.scope = "rendezvous/run/1/0",
                 .world_size = 2,
                 .cause = Cause{.kind = Cause::Kind::stopped, .rank = rank, .reporter = rank, .step = 2, .text = "x"}});
    judged.rank_ended(end_of(rank, {.value = kExitRequeue}));
  }
  judged.conclude(0);
  ASSERT_TRUE(judged.again());
}

TEST(Arbiter, RanksThatLackFilesOfAnAbsentHostWaitForItWhereOneCanBeAdded) {
  for (const bool may_grow : {true, false}) {
    RestartPolicy restarts(9, true);
    FailureArbiter judged({.hosts = with_first_ranks({{.name = "a", .ranks = 1}, {.name = "b", .ranks = 1}}),
                           .least_hosts = 2,
                           .may_grow = may_grow,
                           .restarts = &restarts,
                           .facts = [](int rank) { return RankFacts{.rank = rank}; }});
    for (int rank = 0; rank < 2; ++rank) {
      judged.heard({.kind = Cause::Kind::mismatch,
                    .reporter = rank,
                    .error_number = kHostAbsent,
                    .ends_group = false,
                    .text = "a file is on host c"});
    }
    for (int rank = 0; rank < 2; ++rank) {
      RankEnd end;
      end.rank = rank;
      end.ending = {.value = 1};
      judged.rank_ended(std::move(end));
    }
    judged.conclude(0);
    EXPECT_EQ(judged.again().has_value(), may_grow);
    EXPECT_EQ(judged.awaits_host(), may_grow ? "a file is on host c" : "");
    EXPECT_EQ(judged.exit_code(), may_grow ? 0 : kExitPeerLost);
  }
}

// Ranks 0 and 1 on host a, 2 on b; rank `first` fails in four starts, of which only the first finishes a step.
std::optional<HostSlots> left_out_after_failures_of(int first, int least_hosts, std::string* json = nullptr) {
  RestartPolicy restarts(9, true);
  std::optional<HostSlots> left_out;
  for (int start = 0; start < 4; ++start) {
    FailureArbiter judged(
        {.hosts = with_first_ranks({{.name = "a", .ranks = 2}, {.name = "b", .ranks = 1, .agent = 7}}),
         .least_hosts = least_hosts,
         .restarts = &restarts,
         .members =
             [] {
               return std::vector<membership::MemberView>{
                   {.info = {.world_size = 3}, .position = {.step = 1, .steps_done = 57}}};
             },
         .facts = [](int rank) { return RankFacts{.rank = rank}; },
         .on_conclusion =
             [json](const VerdictRecord& record) {
               if (json != nullptr) *json = as_json(record, "run", 1);
             }});
    for (const int rank : {first, (first + 1) % 3, (first + 2) % 3}) {
      RankEnd end;
      end.rank = rank;
      end.ending = rank == first ? ExitStatus{.value = 9} : kLostAnother;
      judged.rank_ended(std::move(end));
    }
    judged.conclude(0);
    left_out = judged.left_out();
  }
  return left_out;
}

TEST(LeftOut, IsTheHostWhoseRanksFailFirstIfTheJobCanDoWithoutIt) {
  std::string json;
  const auto host = left_out_after_failures_of(2, 1, &json);
  ASSERT_TRUE(host);
  EXPECT_EQ(host->agent, 7);
  EXPECT_EQ(nlohmann::json::parse(json)["left_out_host"], "b");
  EXPECT_EQ(nlohmann::json::parse(json)["starts_again"], true);
  EXPECT_FALSE(left_out_after_failures_of(1, 1)) << "the first host has the store";
  EXPECT_FALSE(left_out_after_failures_of(2, 2)) << "too few would be left";
  EXPECT_FALSE(left_out_after_failures_of(2, 0)) << "the number of hosts is fixed";
}

TEST_F(RestartVerdict, RanksThatCameToTheirEndMeanwhileAreOver) {
  RestartPolicy restarts(0, true);
  auto judged = verdict(restarts);
  members_[1].position = {.step = 1, .steps_done = 1};
  judged.resize();
  for (int rank = 0; rank < 2; ++rank) judged.rank_ended(end_of(rank, {}));
  judged.conclude(0);
  EXPECT_FALSE(judged.again());
  EXPECT_EQ(judged.exit_code(), 0);
}

}  // namespace
}  // namespace lockstep::launcher::failure_arbiter_test
