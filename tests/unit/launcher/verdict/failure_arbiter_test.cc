// SPDX-License-Identifier: Apache-2.0
// The verdict over several hosts: its record, and what is said and ordered after which event, as pages of
// tests/messages/launcher.txt. Which rank is the root is root_cause_test.cc's.
#include "launcher/verdict/failure_arbiter.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "launcher/process/stacks.h"
#include "runtime/base/signal_name.h"
#include "runtime/job/exit_code.h"
#include "tests/support/messages.h"

namespace lockstep::launcher::failure_arbiter_test {
namespace {

using lockstep::testing::expect_message;
using Outcome = VerdictRecord::Outcome;

constexpr ExitStatus kLostAnother{.value = kExitPeerLost};
constexpr ExitStatus by_signal(int signal) { return {.by_signal = true, .value = signal}; }

class Verdict : public ::testing::Test {
 protected:
  Verdict() { begin({.hosts = {{.name = "a", .ranks = 2}, {.name = "b", .ranks = 2}, {.name = "c", .ranks = 1}}}); }
  void begin(FailureArbiter::Options options) {
    hosts_ = options.hosts = with_first_ranks(std::move(options.hosts));
    options.facts = [this](int rank) { return ended(rank, {}); };
    options.on_conclusion = [this](const VerdictRecord& record) { record_ = record; };
    verdict_.emplace(std::move(options));
  }
  RankEnd ended(int rank, ExitStatus ending) const {
    RankEnd end;
    end.rank = rank;
    end.host = hosts_[static_cast<std::size_t>(node_of(hosts_, rank))].name;
    end.pid = 1000 + rank;
    end.ending = ending;
    end.saved_step = saved_step_;
    return end;
  }

  // The events. What is ordered after one stands below it on the page.
  void end(const RankEnd& end) {
    verdict_->rank_ended(end);
    note(fmt::format("rank {} {}", end.rank, end.ending.describe()));
  }
  void end(std::initializer_list<int> ranks, ExitStatus ending) {
    for (const int rank : ranks) end(ended(rank, ending));
  }
  void hear(const Cause& cause) {
    verdict_->heard(cause);
    note(fmt::format("{} says of rank {}: {}", cause.reporter < 0 ? "store" : fmt::format("rank {}", cause.reporter),
                     cause.rank, name_of(cause.kind)));
  }
  void fail(int rank, const std::string& text) {
    hear({.kind = Cause::Kind::failed, .rank = rank, .reporter = rank, .text = text});
  }
  void lose_host(int node) {
    verdict_->host_lost(node, "is gone: its launcher (pid 7) has ended");
    note(fmt::format("node rank {} is lost", node));
  }
  void signal(int number) {
    verdict_->signalled(number);
    note(signal_name(number));
  }
  void take_stacks(const std::vector<std::string>& lines) {
    verdict_->stacks_taken(lines);
    note("stacks came");
  }
  void await_timer() {
    std::vector<Order> orders;
    while (orders.empty()) {
      verdict_->check_timers();
      orders = verdict_->take_orders();
    }
    note("time is up", orders);
  }
  // With what a record usually has to say.
  void conclude(Outcome outcome, int exit_code, int complaint = 0) {
    verdict_->conclude(complaint);
    note("the end");
    EXPECT_EQ(record_.outcome, outcome);
    EXPECT_EQ(record_.exit_code, exit_code);
    EXPECT_EQ(verdict_->exit_code(), exit_code);
    EXPECT_EQ(record_.starts_again, verdict_->again().has_value());
    const bool is_given = record_.first || record_.lost_host;
    EXPECT_TRUE(!is_given || page_.find(record_.summary) != std::string::npos) << record_.summary;
  }
  void expect_page(const char* file = __builtin_FILE(), int line = __builtin_LINE()) const {
    expect_message("launcher", "what is said", page_, file, line);
  }
  void expect_json(const char* file = __builtin_FILE(), int line = __builtin_LINE()) const {
    expect_message("launcher", "verdict.json", as_json(record_, "run-1", 3), file, line);
  }

  RankMap hosts_;
  VerdictRecord record_;
  std::optional<FailureArbiter> verdict_;
  std::optional<std::int64_t> saved_step_;
  std::string page_;

 private:
  void note(const std::string& event) { note(event, verdict_->take_orders()); }
  void note(const std::string& event, const std::vector<Order>& orders) {
    static const std::regex time(R"(\d+\.\d s (after the start|and reported))");
    page_ += "- " + event + "\n";
    for (const Order& order : orders) {
      if (!order.text.empty()) page_ += std::regex_replace(order.text, time, "T s $1") + "\n";
      if (order.kind == Order::Kind::end_ranks) page_ += "[end the ranks]\n";
      if (order.kind == Order::Kind::pass_on) page_ += fmt::format("[pass on {}]\n", signal_name(order.signal));
      if (order.kind == Order::Kind::kill) page_ += "[kill the ranks]\n";
      if (order.kind == Order::Kind::take_stacks)
        page_ += fmt::format("[take stacks: rank {}, pid {}, question {}]\n", order.rank, order.pid, order.question);
    }
  }
};

TEST_F(Verdict, OfWhatFollowsAStandstillOfTheFirstHostNamesThatHostAndNoRank) {
  verdict_->stood_still(std::chrono::milliseconds(5200));
  EXPECT_FALSE(verdict_->is_given()) << "nobody may have minded";
  fail(3, "rank 3 failed");
  lose_host(2);
  end({3}, {.value = 1});
  conclude(Outcome::host_lost, kExitPeerLost);
  EXPECT_EQ(record_.lost_host, std::pair(0, std::string("a")));
  EXPECT_FALSE(record_.first);
  expect_page();
}

TEST_F(Verdict, AStandstillBesideASignalIsForTheSignal) {
  signal(SIGTERM);
  verdict_->stood_still(std::chrono::milliseconds(5200));
  end({0, 1, 2, 3, 4}, by_signal(SIGTERM));
  conclude(Outcome::stopped, 128 + SIGTERM);
}

TEST_F(Verdict, NamesTheRankItsHostAndItsLastLinesAndThenTheConsequences) {
  RankEnd first = ended(3, {.value = 42});
  first.last_lines = {"it broke", "badly"};
  end(first);
  end({0, 1}, kLostAnother);
  end({2}, by_signal(SIGTERM));
  end({4}, kLostAnother);
  conclude(Outcome::failed, 42);
  EXPECT_EQ(record_.first.value().rank.rank, 3);
  expect_page();
}

TEST_F(Verdict, WhoHoldsTheOthersUpIsNamedBeforeTheyEndByTheSignal) {
  begin({.hosts = {{.name = "a", .ranks = 2}, {.name = "b", .ranks = 2}},
         .stop_timeout = std::chrono::nanoseconds(10),
         .members = [] {
           std::vector<membership::MemberView> members;
           for (const auto& [rank, sequence] : {std::pair(0, 8), {1, 8}, {2, 7}}) {
             members.push_back({.info = {.rank = rank, .world_size = 4, .process = {.host = "b", .pid = 100 + rank}},
                                .position = {.sequence = sequence, .collective = "all_reduce", .step = sequence}});
           }
           return members;
         }});
  EXPECT_FALSE(verdict_->due());
  signal(SIGTERM);
  verdict_->told({.world_size = 4, .cause = Cause{.kind = Cause::Kind::stopped, .rank = 1, .reporter = 1}});
  ASSERT_TRUE(verdict_->due());
  await_timer();
  EXPECT_FALSE(verdict_->due());
  expect_page();
}

TEST_F(Verdict, ALostHostIsToldFromALostRank) {
  lose_host(1);
  end({0, 1, 4}, kLostAnother);
  conclude(Outcome::host_lost, kExitPeerLost);
  EXPECT_FALSE(record_.first);
  expect_page();
  expect_json();
}

TEST_F(Verdict, AHostThatIsLostAfterARankFailedIsAConsequence) {
  end({0}, {.value = 3});
  lose_host(2);
  lose_host(2);  // said once
  end({1, 2, 3}, kLostAnother);
  conclude(Outcome::failed, 3);
  EXPECT_EQ(record_.first.value().rank.rank, 0);
  expect_page();
}

// Its ranks are heard of first: the ranks' silence and the agent's are a heartbeat apart.
TEST_F(Verdict, AHostThatIsLostWhileItsRankIsJudgedIsTheRoot) {
  hear({.kind = Cause::Kind::silent, .rank = 2, .host = "b", .text = "rank 2 (host b) stopped answering"});
  EXPECT_TRUE(verdict_->due());
  lose_host(1);
  EXPECT_FALSE(verdict_->due());
  conclude(Outcome::host_lost, kExitPeerLost);
  EXPECT_EQ(record_.lost_host, std::pair(1, std::string("b")));
}

// Rank 3 hangs, whose process the launcher started behind a wrapper.
class HungVerdict : public Verdict {
 protected:
  void hang() {
    hear({.kind = Cause::Kind::silent, .rank = 3, .host = "b", .pid = 71, .text = "rank 3 (host b) hangs"});
    await_timer();
  }
};

TEST_F(HungVerdict, HasItsHostsLauncherTakeItsStacksAndSaysWhereItIs) {
  hang();
  end({0}, kLostAnother);  // no order: the hung rank is to be looked at before it is ended
  ASSERT_TRUE(verdict_->due());
  EXPECT_GT(verdict_->due()->remaining(), kHungLimit);
  take_stacks({"Thread 1:", "#0  main"});
  EXPECT_FALSE(verdict_->due());
  take_stacks({"late"});
  expect_page();
}

TEST_F(HungVerdict, IsGivenWithoutStacksThatNobodyHasOrThatDoNotComeAnyMore) {
  const RankMap hosts = hosts_;
  hang();
  take_stacks({});
  begin({.hosts = hosts});
  hang();
  lose_host(1);
  begin({.hosts = hosts});
  hang();
  signal(SIGTERM);
  expect_page();
}

TEST_F(Verdict, AStopIsPassedOnAndTheSecondOneKills) {
  for (int count = 0; count < 3; ++count) signal(SIGTERM);
  end({0, 1, 2, 3, 4}, by_signal(SIGKILL));
  conclude(Outcome::stopped, 128 + SIGTERM);
  expect_page();
}

TEST_F(Verdict, WithoutAFailureNothingIsSaidAndAComplaintOfALauncherIsTheExitCode) {
  const RankMap hosts = hosts_;
  for (const int complaint : {0, 1}) {
    begin({.hosts = hosts});
    end({0, 1, 2, 3, 4}, {});
    conclude(Outcome::finished, complaint, complaint);  // output was lost, say
    EXPECT_EQ(record_.summary, "every rank ended with code 0");
    EXPECT_TRUE(record_.consequences.empty());
  }
  expect_page();
  expect_json();
}

// Ranks 0 and 1 on host a, 2 on b.
class Conclusion : public Verdict {
 protected:
  Conclusion() {
    begin({.hosts = {{.name = "a", .ranks = 2}, {.name = "b", .ranks = 1}}, .members = [] {
             return std::vector{membership::MemberView{.info = {.rank = 2, .world_size = 3}, .position = {.step = 17}}};
           }});
  }
};

TEST_F(Conclusion, OfAFailureHasTheFirstRankAndItsConsequencesAndTheStepThatIsSaved) {
  saved_step_ = 65;
  RankEnd first = ended(2, by_signal(SIGKILL));
  first.memory_kills = 2;
  first.last_lines = {"the \xff end"};
  end(first);
  end({0}, kLostAnother);
  end({1}, by_signal(SIGTERM));
  conclude(Outcome::failed, 137);
  expect_page();
  expect_json();
}

TEST_F(Conclusion, OfTheSameErrorOnAllRanksBlamesNone) {
  for (const int rank : {1, 0, 2}) {
    fail(rank, "no such file");
    end({rank}, {.value = 1});  // the others may report the same
  }
  conclude(Outcome::failed, 1);
  expect_page();
  expect_json();
}

TEST_F(Conclusion, OfOneErrorUnderEachRanksOwnNameBlamesNoneAndWantsTheProgramMended) {
  saved_step_ = 65;
  for (const int rank : {1, 0, 2}) {
    Cause cause{.kind = Cause::Kind::failed, .rank = rank, .reporter = rank, .host = "a", .pid = 1000 + rank};
    cause.text = "no such file";
    if (rank != 2) cause.text = fmt::format("rank {} (host a, pid {}) failed in step 0: no such file", rank, cause.pid);
    hear(cause);
    end({rank}, {.value = 1});
  }
  conclude(Outcome::failed, 1);
  EXPECT_EQ(record_.hint, "step 65 is saved: mend the program, then run the same command to resume");
  expect_page();
}

// Its program does not reach the launcher's memory: only the store has seen its end.
TEST_F(Conclusion, OfARankThatWasLostBehindACommandThatReturned0IsAFailure) {
  hear({.kind = Cause::Kind::lost, .rank = 1, .host = "a", .pid = 4711, .text = "rank 1 is lost"});
  end({1}, {});
  end({0, 2}, kLostAnother);
  conclude(Outcome::failed, 1);
  expect_json();
}

TEST_F(Conclusion, OfARankThatEndedWith0ItselfIsNone) {
  hear({.kind = Cause::Kind::lost, .rank = 1, .host = "a", .pid = 1001});
  end({0, 1, 2}, {});
  conclude(Outcome::finished, 0);
}

TEST_F(Conclusion, OfAReportHasWhatWasSaid) {
  hear({.kind = Cause::Kind::failed, .rank = 1, .reporter = 1, .step = 4, .bucket = 2, .text = "loss is nan"});
  end({1}, {.value = 3});
  end({0, 2}, kLostAnother);
  conclude(Outcome::failed, 3);
  expect_json();
}

TEST_F(Conclusion, OfAJobThatWasAskedToStop) {
  signal(SIGTERM);
  end({0, 1, 2}, by_signal(SIGTERM));
  conclude(Outcome::stopped, 143);
  expect_json();
}

TEST_F(Verdict, WhereTheRanksDisagreeNoRankIsNamedAndNoHostLeftOut) {
  RestartPolicy restarts(9, true);
  for (int start = 0; start < 4; ++start) {
    begin({.hosts = {{.name = "a", .ranks = 1}, {.name = "b", .ranks = 1}}, .least_hosts = 1, .restarts = &restarts});
    for (const int rank : {1, 0}) hear({.kind = Cause::Kind::mismatch, .reporter = rank, .text = "other models"});
    end({1, 0}, {.value = 1});
    verdict_->conclude(0);
    EXPECT_FALSE(verdict_->left_out());
  }
  EXPECT_EQ(record_.first.value().rank.rank, -1);
  EXPECT_EQ(record_.first.value().cause.value().text, "other models");
}

// The second start of ranks 0 and 1 on host a.
class RestartVerdict : public Verdict {
 protected:
  void restart(RestartPolicy& restarts) {
    members_.assign(2, {.scope = "rendezvous/run/1/0", .info = {.world_size = 2}});
    members_[1].info.rank = 1;
    begin(
        {.hosts = {{.name = "a", .ranks = 2}}, .scope = "rendezvous/run/1/", .restarts = &restarts, .members = [this] {
           return members_;
         }});
  }
  void tell(const Cause& cause, std::int64_t steps_done = 0, const std::string& scope = "rendezvous/run/1/0") {
    verdict_->told(
        {.scope = scope, .world_size = 2, .cause = cause, .position = {.step = 11, .steps_done = steps_done}});
  }
  std::size_t stops_to_resize() {
    verdict_->resize();
    std::size_t count = 0;
    for (const Order& order : verdict_->take_orders()) count += order.kind == Order::Kind::stop_to_resize ? 1 : 0;
    return count;
  }

  std::vector<membership::MemberView> members_;
};

TEST_F(RestartVerdict, ARankThatDiedAfterAStepIsStartedAgainWithTheStepsThatAreDone) {
  RestartPolicy restarts(1, false);
  restart(restarts);
  members_[0].position = {.step = 11, .steps_done = 57};
  end({1}, by_signal(SIGKILL));
  end({0}, kLostAnother);
  conclude(Outcome::failed, 0);
  EXPECT_EQ(verdict_->again(), std::chrono::milliseconds(0));
  EXPECT_EQ(verdict_->late_stop(), std::nullopt);
  signal(SIGTERM);
  signal(SIGINT);
  EXPECT_EQ(verdict_->late_stop(), SIGTERM) << "it finds no rank to pass the signal on to";
  expect_page();
}

TEST_F(RestartVerdict, StepsAreCountedAsRanksGoForTheStoreForgetsThem) {
  RestartPolicy restarts(1, false);
  restart(restarts);
  tell({.kind = Cause::Kind::lost, .rank = 0}, 57);
  members_.clear();
  end({1, 0}, by_signal(SIGKILL));
  conclude(Outcome::failed, 0);
  EXPECT_TRUE(verdict_->again());
}

TEST_F(RestartVerdict, AStepThatNoHeartbeatHasSpokenOfCountsByTheLaunchersMemoryOfTheRank) {
  RestartPolicy restarts(2, false);
  for (const std::int64_t steps : {58, 59}) {
    restart(restarts);
    for (const int rank : {1, 0}) {
      RankEnd last = ended(rank, by_signal(SIGKILL));
      last.steps_done = rank == 1 ? steps : steps - 1;
      end(last);
    }
    conclude(Outcome::failed, 0);
    EXPECT_EQ(verdict_->again(), std::chrono::milliseconds(0)) << "a step further than the start before";
  }
  expect_page();
}

TEST_F(RestartVerdict, TheLastLineNamesTheFailureAndWhyItIsNotStartedAgain) {
  RestartPolicy restarts(1, false);
  restart(restarts);
  end({1}, {.value = 3});
  end({0}, kLostAnother);
  conclude(Outcome::failed, 3);
  EXPECT_FALSE(verdict_->again());
  expect_page();
}

// A signal to the job, or a process that a launcher could not end, beside which no ranks may start.
TEST_F(RestartVerdict, WhoAskedTheJobToStopOrComplainsGetsNoRestart) {
  for (const bool is_asked : {true, false}) {
    RestartPolicy restarts(1, false);
    restart(restarts);
    members_[0].position = {.step = 11, .steps_done = 57};
    if (is_asked) signal(SIGTERM);
    end({1}, {.value = 3});
    end({0}, kLostAnother);
    conclude(Outcome::failed, 3, is_asked ? 0 : 1);
    EXPECT_FALSE(verdict_->again());
  }
}

TEST_F(RestartVerdict, NewsOfAnotherStartAreNone) {
  RestartPolicy restarts(1, false);
  restart(restarts);
  const Cause silent{.kind = Cause::Kind::silent, .rank = 1, .host = "a", .text = "rank 1 (host a) does not answer"};
  tell(silent, 0, "rendezvous/run/0/0");
  EXPECT_FALSE(verdict_->due());
  tell(silent);
  EXPECT_TRUE(verdict_->due());
}

TEST_F(RestartVerdict, AHostIsTakenInAfterAStepByAnAgreedStop) {
  RestartPolicy restarts(0, true);
  restart(restarts);
  EXPECT_EQ(stops_to_resize(), 0u) << "no step has been done";
  members_[1].position = {.step = 1, .steps_done = 1};
  EXPECT_EQ(stops_to_resize(), 1u);
  EXPECT_EQ(stops_to_resize(), 0u) << "once";
  for (const int rank : {0, 1}) {
    tell({.kind = Cause::Kind::stopped, .rank = rank, .reporter = rank, .step = 2, .text = "x"});
    end({rank}, {.value = kExitRequeue});
  }
  conclude(Outcome::stopped, 0);
  EXPECT_TRUE(verdict_->again());
}

TEST_F(RestartVerdict, AnAgreedStopIsOneAlsoIfEndsBecomeKnownBeforeReports) {
  for (const bool after_one : {false, true}) {
    RestartPolicy restarts(0, true);
    restart(restarts);
    verdict_->signalled(SIGTERM);
    const Cause report{.kind = Cause::Kind::stopped, .rank = 1, .reporter = 1, .step = 2, .text = "rank 1 got SIGTERM"};
    if (after_one) tell(report);
    end({0, 1}, {.value = kExitRequeue});
    if (!after_one) tell(report);
    conclude(Outcome::stopped, kExitRequeue);
  }
}

TEST_F(RestartVerdict, RanksThatCameToTheirEndMeanwhileAreOver) {
  RestartPolicy restarts(0, true);
  restart(restarts);
  members_[1].position = {.step = 1, .steps_done = 1};
  EXPECT_EQ(stops_to_resize(), 1u);
  end({0, 1}, {});
  conclude(Outcome::finished, 0);
  EXPECT_FALSE(verdict_->again());
}

TEST_F(RestartVerdict, RanksThatLackFilesOfAnAbsentHostWaitForItWhereOneCanBeAdded) {
  for (const bool may_grow : {true, false}) {
    RestartPolicy restarts(9, true);
    begin({.hosts = {{.name = "a", .ranks = 1}, {.name = "b", .ranks = 1}},
           .least_hosts = 2,
           .may_grow = may_grow,
           .restarts = &restarts});
    for (const int rank : {0, 1}) {
      hear({.kind = Cause::Kind::mismatch,
            .reporter = rank,
            .error_number = kHostAbsent,
            .ends_group = false,
            .text = "a file is on host c"});
    }
    end({0, 1}, {.value = 1});
    conclude(Outcome::failed, may_grow ? 0 : kExitPeerLost);
    EXPECT_EQ(verdict_->again().has_value(), may_grow);
    EXPECT_EQ(verdict_->awaits_host(), may_grow ? "a file is on host c" : "");
  }
}

// A rank that is to blame, in a job of ranks 0 and 1 on host a and rank 2 on host b.
struct Culprit {
  const char* name;
  int rank;
  int least_hosts;
  bool is_left_out;  // whether its host is left out
};
constexpr Culprit kCulprits[] = {{"can do without", 2, 1, true},
                                 {"the first host has the store", 1, 1, false},
                                 {"too few would be left", 2, 2, false},
                                 {"the number of hosts is fixed", 2, 0, false}};

FailureArbiter::Options of_two_hosts(int least_hosts, RestartPolicy& restarts) {
  return {.hosts = {{.name = "a", .ranks = 2}, {.name = "b", .ranks = 1, .agent = 7}},
          .least_hosts = least_hosts,
          .restarts = &restarts,
          .members = [] {
            return std::vector<membership::MemberView>{
                {.info = {.world_size = 3}, .position = {.step = 1, .steps_done = 57}}};
          }};
}

TEST_F(RestartVerdict, TheHostWhoseRanksFailFirstIsLeftOutIfTheJobCanDoWithoutIt) {
  for (const auto& [name, first, least_hosts, is_left_out] : kCulprits) {
    SCOPED_TRACE(name);
    RestartPolicy restarts(9, true);
    // Of four starts the first finishes a step.
    for (int start = 0; start < 4; ++start) {
      begin(of_two_hosts(least_hosts, restarts));
      end({first}, {.value = 9});
      end({(first + 1) % 3, (first + 2) % 3}, kLostAnother);
      verdict_->conclude(0);
    }
    EXPECT_EQ(verdict_->left_out() ? verdict_->left_out()->agent : -1, is_left_out ? 7 : -1);
    EXPECT_EQ(record_.left_out_host, is_left_out ? "b" : "");
    EXPECT_EQ(record_.starts_again, is_left_out);
    if (is_left_out) expect_json();
  }
}

// Each rank reports what the audit has found of rank 2, and ends.
TEST_F(RestartVerdict, TheHostThatComputesWrongValuesIsLeftOutAtOnceIfTheJobCanDoWithoutIt) {
  for (const auto& [name, liar, least_hosts, is_left_out] : kCulprits) {
    SCOPED_TRACE(name);
    RestartPolicy restarts(9, least_hosts > 0);
    begin(of_two_hosts(least_hosts, restarts));
    for (const int rank : {0, 1, 2}) {
      hear({.kind = Cause::Kind::mismatch,
            .rank = liar,
            .reporter = rank,
            .error_number = kHostComputesWrong,
            .ends_group = false,
            .text = "it computes wrong values"});
    }
    end({0, 1, 2}, {.value = 1});
    verdict_->conclude(0);
    EXPECT_EQ(record_.first ? record_.first->rank.rank : -1, liar);
    EXPECT_EQ(verdict_->left_out() ? verdict_->left_out()->agent : -1, is_left_out ? 7 : -1);
    EXPECT_EQ(record_.starts_again, is_left_out);
    EXPECT_EQ(record_.exit_code, is_left_out ? 0 : 77);
  }
}

}  // namespace
}  // namespace lockstep::launcher::failure_arbiter_test
