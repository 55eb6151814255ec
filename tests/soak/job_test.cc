// SPDX-License-Identifier: Apache-2.0
// A job that trains under `lockstep run`, again and again; each time a rank comes to harm, drawn by a seed: which one,
// when, how, over which backend. Launcher and survivors must name it, and no other; nothing may hang or be left.
//
// A round for each of SOAK_KILLS (8) seeds from SOAK_SEED (1) on; scripts/test --extra soak job sets them.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "lockstep/base/environment.h"
#include "lockstep/base/random.h"
#include "tests/e2e/launch.h"
#include "tests/support/leftovers.h"

namespace lockstep::soak::job_test {
namespace {

using e2e::contains;
using e2e::Process;
using e2e::Result;
using testing::wait_until;

struct Signal {
  int number;
  const char* name;
};
constexpr std::array<Signal, 5> kSignals = {
    {{SIGKILL, "SIGKILL"}, {SIGSEGV, "SIGSEGV"}, {SIGABRT, "SIGABRT"}, {SIGTERM, "SIGTERM"}, {SIGSTOP, "SIGSTOP"}}};

struct Harm {
  std::string backend;
  int ranks = 0;
  int victim = 0;
  Signal signal = kSignals[0];
  bool trains = false;  // the moment counts from the victim's first step, not from the start of its process
  std::chrono::milliseconds moment{0};
  bool survivors_speak = false;  // the launcher's SIGTERM does not end them: they hear of it from the library
  bool caught = false;           // main catches what is thrown, and returns 1

  std::string describe() const {
    return std::to_string(ranks) + " ranks over " + backend + ", " + signal.name + " to rank " +
           std::to_string(victim) + " " + std::to_string(moment.count()) + " ms after " +
           (trains ? "its first step" : "its start") + (survivors_speak ? ", SIGTERM ignored" : "") +
           (caught ? ", main catches" : "");
  }
};

Harm draw(std::uint64_t seed) {
  Generator random(seed);
  Harm harm;
  harm.backend = random.below(2) == 0 ? "tcp" : "shm";
  harm.ranks = 2 + static_cast<int>(random.below(3));
  harm.victim = static_cast<int>(random.below(static_cast<std::uint64_t>(harm.ranks)));
  harm.signal = kSignals[random.below(kSignals.size())];
  // A rank that is stopped before it has met the others is waited for.
  harm.trains = random.below(4) != 0 || harm.signal.number == SIGSTOP;
  harm.moment = std::chrono::milliseconds(random.below(harm.trains ? 300 : 120));
  harm.survivors_speak = random.below(2) == 0 && harm.signal.number != SIGTERM;
  harm.caught = random.below(2) == 0;
  return harm;
}

class Round {
 public:
  explicit Round(const Harm& harm) : harm_(harm), launcher_(options()) {}

  void run() {
    ASSERT_TRUE(wait_until([&] {
      const auto ranks = testing::live_ranks(SOAK_TRAIN);
      if (!ranks.contains(harm_.victim)) return false;
      pid_ = ranks.at(harm_.victim);
      return true;
    })) << "it did not start";
    if (harm_.trains) {
      ASSERT_TRUE(launcher_.await_output("[rank " + std::to_string(harm_.victim) + "] training"));
    }
    footprint_.look();
    const Deadline moment = Deadline::after(harm_.moment);
    while (!moment.expired()) poll(nullptr, 0, moment.poll_timeout_ms());
    ASSERT_EQ(kill(pid_, harm_.signal.number), 0);
    result_ = launcher_.wait();
    check_launcher();
    for (int rank = 0; rank < harm_.ranks; ++rank) {
      if (rank != harm_.victim) check_survivor(rank);
    }
    EXPECT_EQ(footprint_.left_after(testing::leftover_deadline()), "");
  }

 private:
  e2e::ProcessOptions options() const {
    e2e::Words actions{harm_.backend};
    if (harm_.caught) actions.push_back("caught");
    // The survivors have the grace to speak. Of a rank that is stopped they hear after 3 s, and the launcher waits for
    // it too.
    const std::string grace = harm_.signal.number == SIGSTOP ? "3" : "20";
    e2e::ProcessOptions options{
        .command = e2e::run_command({"-n", std::to_string(harm_.ranks), "--grace", grace}, SOAK_TRAIN, actions)};
    if (harm_.survivors_speak) options.environment["SOAK_IGNORES_TERM"] = "1";
    if (harm_.signal.number == SIGSTOP) options.environment["LOCKSTEP_LIVENESS"] = "on";
    return options;
  }

  std::string victim() const { return "rank " + std::to_string(harm_.victim) + " "; }
  std::string with_pid() const { return "pid " + std::to_string(pid_) + ")"; }

  void check_launcher() const {
    const auto lines = e2e::lines_of(result_.err);
    ASSERT_FALSE(lines.empty());
    const std::string& last = lines.back();
    EXPECT_TRUE(contains(last, "lockstep run: " + victim())) << last;
    std::string verdict;
    for (const auto& line : lines) {
      if (verdict.empty() && line.starts_with("lockstep run: " + victim() + "(host ")) verdict = line;
    }
    EXPECT_TRUE(contains(verdict, with_pid())) << "no line names its pid";
    if (harm_.signal.number == SIGSTOP) {
      EXPECT_NE(result_.exit_code, 0);
      return;
    }
    const std::string how = "was killed by signal " + std::to_string(harm_.signal.number) + " (" + harm_.signal.name;
    EXPECT_TRUE(contains(verdict, how)) << verdict;
    EXPECT_TRUE(contains(last, how)) << last;
    EXPECT_EQ(result_.exit_code, 128 + harm_.signal.number);
  }

  // What a rank said last, caught or not: the first rank that it names with its process is the one that came to harm.
  void check_survivor(int rank) const {
    std::string word = e2e::last_word_of_rank(result_, std::to_string(rank));
    if (harm_.caught) {
      for (const auto& line : e2e::lines_of(result_.err)) {
        if (line.starts_with("[rank " + std::to_string(rank) + "] soak_train caught: ")) word = line;
      }
    }
    const bool must_speak = harm_.trains && harm_.survivors_speak;
    EXPECT_FALSE(must_speak && word.empty()) << "rank " << rank << " said nothing";
    if (word.empty()) return;
    const auto named = word.find(" (host ");
    ASSERT_NE(named, std::string::npos) << word;
    const auto begin = word.rfind("rank ", named);
    EXPECT_EQ(word.substr(begin, named - begin) + " ", victim()) << word;
    EXPECT_TRUE(contains(word, with_pid())) << word;
  }

  const Harm harm_;
  testing::Footprint footprint_;
  Process launcher_;
  pid_t pid_ = 0;
  Result result_;
};

std::int64_t setting(const char* name, std::int64_t otherwise) {
  return Environment::of_process().get_int(name).value_or(otherwise);
}

class SoakJob : public ::testing::TestWithParam<std::int64_t> {};

const std::int64_t kSeed = setting("SOAK_SEED", 1);
INSTANTIATE_TEST_SUITE_P(Seed, SoakJob, ::testing::Range(kSeed, kSeed + setting("SOAK_KILLS", 8)));

TEST_P(SoakJob, WhoComesToHarmIsNamedAndNothingIsLeft) {
  const Harm harm = draw(static_cast<std::uint64_t>(GetParam()));
  std::printf("%s\n", harm.describe().c_str());
  std::fflush(stdout);
  SCOPED_TRACE(harm.describe());
  Round(harm).run();
}

}  // namespace
}  // namespace lockstep::soak::job_test
