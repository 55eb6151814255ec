// SPDX-License-Identifier: Apache-2.0
// Each way in which a rank can come to harm, to rank 0 and to another one, over shared memory and over TCP, and who is
// named, whatever the ranks make of the errors that they get: the rows of docs/PROMISES.md for one host, and
// docs/FAILURES.md.
//
// scripts/test --extra soak attribution runs these again and again.
#include <gtest/gtest.h>

#include <csignal>
#include <regex>
#include <sstream>
#include <tuple>

#include "tests/e2e/job.h"
#include "tests/support/leftovers.h"
#include "tests/support/sanitized.h"
#include "tests/support/source_line.h"

namespace lockstep::e2e::harm_test {
namespace {

struct Harm {
  std::string name;
  // Actions of tests/e2e/programs/e2e_rank.cc. @V: the victim does it, @O: each other rank, @N: the victim's neighbour.
  std::string actions;
  int exit_code;
  std::string how;  // as the verdict has it; empty: nobody is blamed
  Words flags = {"--grace", "20"};
  bool all_hear = true;  // the others, which the launcher's SIGTERM does not end, name the victim with its pid
  int ranks = 3;
};
void PrintTo(const Harm& harm, std::ostream* out) { *out << harm.name; }

// A process that is stopped or hangs is ended after the grace.
const Words kLiveness = {"--liveness", "on", "--grace", "3"};
const Words kPatient = {"--timeout", "600", "--grace", "20"};
const std::string kKilled = "was killed by signal 9 (SIGKILL); 2 other ranks ended after it";
const std::string kLeft = "exited with code 0 while the others still needed it; 2 other ranks ended after it";

const std::vector<Harm> kHarms = {
    {"Stop", "init sum raise:19@V loop", 75, "did not continue: rank ", kLiveness},
    {"Kill", "init sum kill@V loop", 128 + SIGKILL, kKilled},
    {"Segfault", "init sum raise:11@V loop", 128 + SIGSEGV, "was killed by signal 11 (SIGSEGV); "},
    {"ExitWithZero", "init sum exit:0@V loop", 1, kLeft},
    {"ExitWithSeven", "init sum exit:7@V loop", 7, "exited with code 7; 2 other ranks ended after it"},
    {"Exception", "init sum throw:lost@V loop", 128 + SIGABRT,
     "was killed by signal 6 (SIGABRT): 'std::runtime_error': lost; 2 other ranks ended after it"},
    {"EndlessLoop", "init sum hang@V loop", 75, "did not continue: rank ", {"--hang-timeout", "2", "--grace", "3"}},
};

// A rank with "catch" catches every error and returns 1, as careful programs do.
const std::vector<Harm> kMoments = {
    {"StopWhereAllCatch", "catch init sum raise:19@V loop", 75, "did not continue: rank ", kLiveness},
    {"KillWhereAllCatch", "catch init sum kill@V loop", 128 + SIGKILL, kKilled},
    {"ExitWhereAllCatch", "catch init sum exit:0@V loop", 1, kLeft},
    {"AbortWhereAllCatch", "catch init sum abort:full@V loop", 1,
     "exited with code 1: full; 2 other ranks ended after it", kPatient, false},
    {"ExceptionWhereAllCatch", "catch init sum fail:mine@V loop", 1, "exited with code 1"},
    {"ExceptionThatMainCatches", "init sum fail:mine@V loop", 1, "exited with code 1"},
    {"Goodbye", "init sum leave@V exit:0@V loop", 1, kLeft},
    // Between two collectives, where the others ask about it: they compare their models.
    {"GoodbyeBeforeReducers", "init leave@V exit:0@V model:3", 1, kLeft, kPatient},
    {"GoodbyeBeforeReducersWhereAllCatch", "catch init leave@V exit:0@V model:3", 1, kLeft, kPatient},
    // The others would wait for it until the group's timeout.
    {"ExitBeforeItComes", "exit:0@V init sum", 1, "exited with code 0 before it came to init_process_group", kPatient,
     false},
    {"StopBeforeItComes", "raise:19@V init sum", 75, "did not continue: rank ", kLiveness, false},
    // They have given up a group, and what they survived is not held against them.
    {"KillInASecondGroup", "catch init sum give-up:0 init sum kill@V loop", 128 + SIGKILL, kKilled},
    // Its neighbour is in a group with it alone, and hears of it there.
    {"ExceptionInASmallerGroup", "init split half:sum fail:mine@V half:loop@N loop", 1, "exited with code 1", kPatient,
     false, 4},
    {"ExceptionInASmallerGroupOfWhichOneCatches", "catch@N init split half:sum fail:mine@V half:loop@N loop", 1,
     "exited with code 1", kPatient, false, 4},
    // Nobody is blamed. "wait-signal": all have finished the sum before one of them ends, which may not have sent all
    // of its part by then.
    {"AnEndWithZeroOfAll", "catch init sum ready wait-signal:10 exit:0", 0, "", kPatient, false},
    {"Mismatch", "init model:3@O model:4@V", 1, "", kPatient, false},
    {"MismatchThatAllCatch", "catch init model:3@O model:4@V", 1, "", kPatient, false},
    {"OneErrorOfAll", "ignore:15 init sum ready wait-signal:10 throw:mine", 128 + SIGABRT, "", kPatient, false},
};

// By backend, victim and harm.
class HarmTo : public ::testing::TestWithParam<std::tuple<std::string, int, Harm>> {};

std::string name_of(const ::testing::TestParamInfo<HarmTo::ParamType>& test) {
  return std::get<0>(test.param) + "_rank" + std::to_string(std::get<1>(test.param)) + "_" +
         std::get<2>(test.param).name;
}
using ::testing::Combine;
using ::testing::Values;
using ::testing::ValuesIn;
INSTANTIATE_TEST_SUITE_P(Cells, HarmTo, Combine(Values("shm", "tcp"), Values(0, 1), ValuesIn(kHarms)), name_of);
INSTANTIATE_TEST_SUITE_P(OfRankOne, HarmTo, Combine(Values("shm"), Values(1), ValuesIn(kMoments)), name_of);
INSTANTIATE_TEST_SUITE_P(OfRankZero, HarmTo, Combine(Values("tcp"), Values(0), ValuesIn(kMoments)), name_of);

// Replaces @V, @O and @N by the numbers of ranks.
Words actions_of(const Harm& harm, int victim) {
  Words actions;
  const auto add = [&](const std::string& action, int rank) { actions.push_back(action + std::to_string(rank)); };
  const auto add_for_others = [&](const std::string& action) {
    for (int rank = 0; rank < harm.ranks; ++rank) {
      if (rank != victim) add(action, rank);
    }
  };
  if (harm.all_hear) add_for_others("ignore:15@");
  std::istringstream words(harm.actions);
  for (std::string action; words >> action;) {
    const char who = action.ends_with("@V") || action.ends_with("@O") || action.ends_with("@N") ? action.back() : ' ';
    if (who == ' ') {
      actions.push_back(action);
      continue;
    }
    action.pop_back();
    who == 'O' ? add_for_others(action) : add(action, who == 'V' ? victim : 1 - victim);
  }
  return actions;
}

TEST_P(HarmTo, OneRankIsNamedAndNothingIsLeft) {
  const auto& [backend, victim, harm] = GetParam();
  if (testing::kSanitized && harm.exit_code == 128 + SIGSEGV) {
    GTEST_SKIP() << "a sanitizer handles SIGSEGV and SIGABRT itself";
  }
  const testing::Footprint footprint;
  Job job(harm.ranks, joined({RANK_PROGRAM, "backend:" + backend}, actions_of(harm, victim)), harm.flags);
  if (contains(harm.actions, "wait-signal")) {
    ASSERT_TRUE(job->await_output("ready\n", harm.ranks));
    job->send(SIGUSR1);
  }
  const auto verdict =
      job.expect({.exit_code = harm.exit_code, .rank = harm.how.empty() ? -1 : victim, .how = harm.how});
  const std::string& err = job.result().err;
  for (int rank = 0; harm.all_hear && rank < harm.ranks; ++rank) {
    if (rank != victim) expect_blame(last_word_of_rank(job.result(), rank), victim, verdict["first_failure"]["pid"]);
  }
  if (harm.name == "EndlessLoop" && (testing::has_program("gdb") || testing::has_program("eu-stack"))) {
    EXPECT_TRUE(std::regex_search(
        err, std::regex("\n  where it is:\n(  \\| [^\n]*\n)*  \\| #[0-9]+ [^\n]*" + testing::line_of_hang())))
        << err;
  }
  if (harm.name == "ExitBeforeItComes") {
    EXPECT_TRUE(contains(err, "exited with code 0 before it came to init_process_group, where ")) << err;
  }
  if (harm.name.starts_with("Mismatch")) {
    EXPECT_TRUE(verdict["first_failure"]["rank"].is_null()) << verdict;
    EXPECT_TRUE(verdict["summary"].get<std::string>().starts_with(
        "the ranks disagree: Reducer: the ranks train different models. First difference, "))
        << verdict;
  }
  if (harm.name == "OneErrorOfAll") {
    EXPECT_TRUE(verdict["first_failure"]["rank"].is_null()) << verdict;
    EXPECT_EQ(verdict["summary"], "all 3 ranks failed with the same error: 'std::runtime_error': mine; exit code 134");
    EXPECT_FALSE(contains(err, "failed at the same time")) << err;
  }
  EXPECT_EQ(footprint.left_after(testing::leftover_deadline()), "");
}

// Rank 0 fails at work that it does for all, such as saving weights. The others hear of it, and may end first.
TEST(HarmToAll, OfRankZerosFullDiskOverTcpOrSharedMemory) {
  for (const std::string backend : {"shm", "tcp"}) {
    for (const Words& first : {Words{}, Words{"catch"}}) {
      Job job(3, joined({RANK_PROGRAM}, joined(first, {"backend:" + backend, "init", "sum", "rank0:28", "loop"})));
      job.expect({.exit_code = 1, .rank = 0, .how = "exited with code 1"});
      EXPECT_TRUE(contains(job.result().err, "No space left on device")) << job.result().err;
    }
  }
}

// The program is behind a command that returns 0 whatever becomes of it.
TEST(InAPipe, ARankThatFailsFailsTheJob) {
  struct Case {
    Words actions;  // of rank 1, or of a job's only one
    int exit_code;  // the job's
    std::string how;
  };
  const std::vector<Case> cases = {
      {{"exit:3"}, 3, "exited with code 3 in its program (pid "},
      {{"kill"}, 1, "lost its program (pid "},
      {{"throw:mine"}, 1, "lost its program (pid "},
      {{"exit-now:3"}, 1, "lost its program (pid "},
      {{"return:1"}, 1, "exited with code 1 in its program (pid "},
      {{"leave", "exit:5"}, 5, "exited with code 5 in its program (pid "},
  };
  for (const Case& harm : cases) {
    SCOPED_TRACE(harm.actions.front());
    const Words pipe = {"sh", "-c", "\"$@\" | cat", "sh", RANK_PROGRAM, "init", "sum"};
    Words of_one;
    for (const std::string& action : harm.actions) of_one.push_back(action + "@1");
    Job job(2, joined(joined(pipe, of_one), {"loop@0"}));
    job.expect({.exit_code = harm.exit_code, .rank = 1, .how = harm.how});
    Job alone(1, joined(pipe, harm.actions));
    alone.expect({.exit_code = harm.exit_code, .rank = 0});
  }
}

TEST(Wrapped, RanksThatEndWithZeroHaveNotFailed) {
  for (const Words& end : {Words{}, Words{"exit:0"}, Words{"leave", "exit-now:0"}}) {
    for (const int ranks : {1, 2}) {
      Job job(ranks, joined({"sh", "-c", "\"$@\" | cat", "sh", RANK_PROGRAM, "init", "sum"}, end));
      job.expect({});
    }
  }
}

TEST(Wrapped, AnExceptionIsSaidThoughAShellReturnsItsSignalAsACode) {
  Job job(2, {"sh", "-c", "\"$@\"; exit $?", "sh", RANK_PROGRAM, "init", "sum", "throw:mine@1", "loop@0"});
  job.expect({.exit_code = 134, .rank = 1, .how = "exited with code 134: 'std::runtime_error': mine;"});
}

TEST(Wrapped, ARankThatFailsIsStartedAgain) {
  Job job(2, {"sh", "-c", "\"$@\" | cat", "sh", RANK_PROGRAM, "init", "train:5", "exit:3@1"}, {"--max-restarts", "1"});
  job.expect({.exit_code = 3, .rank = 1});
  EXPECT_TRUE(contains(job.result().err, "restart 1 of 1 (--max-restarts); 5 steps done")) << job.result().err;
}

}  // namespace
}  // namespace lockstep::e2e::harm_test
