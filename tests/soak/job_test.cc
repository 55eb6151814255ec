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
#include "tests/e2e/job.h"
#include "tests/support/leftovers.h"

namespace lockstep::soak::job_test {
namespace {

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
           std::to_string(victim) + " " + std::to_string(moment.count()) + " ms after its " +
           (trains ? "first step" : "start") + (survivors_speak ? ", SIGTERM ignored" : "") +
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

void hurt_one(const Harm& harm) {
  testing::Footprint footprint;
  e2e::Words program{RANK_PROGRAM, "backend:" + harm.backend};
  if (harm.caught) program.push_back("catch");
  if (harm.survivors_speak) program.push_back("ignore:15");
  testing::Variables environment;
  const bool stops = harm.signal.number == SIGSTOP;
  if (stops) environment["LOCKSTEP_LIVENESS"] = "on";
  // The survivors have the grace to speak. Of a rank that is stopped they hear after 3 s, and the launcher waits for it
  // too.
  e2e::Job job(harm.ranks, e2e::joined(program, {"init", "train"}), {"--grace", stops ? "3" : "20"}, environment);
  const auto ranks = [] { return testing::live_ranks(RANK_PROGRAM); };
  ASSERT_TRUE(wait_until([&] { return ranks().contains(harm.victim); })) << "it did not start";
  const pid_t pid = ranks().at(harm.victim);
  if (harm.trains) {
    ASSERT_TRUE(job->await_output("[rank " + std::to_string(harm.victim) + "] training"));
  }
  footprint.look();
  const Deadline moment = Deadline::after(harm.moment);
  while (!moment.expired()) poll(nullptr, 0, moment.poll_timeout_ms());
  ASSERT_EQ(kill(pid, harm.signal.number), 0);
  const std::string killed = "was killed by signal " + std::to_string(harm.signal.number) + " (" + harm.signal.name;
  job.expect({.exit_code = stops ? 75 : 128 + harm.signal.number,
              .rank = harm.victim,
              .how = stops ? "did not continue: " : killed,
              .pid = pid});
  for (int rank = 0; rank < harm.ranks; ++rank) {
    if (rank == harm.victim) continue;
    const std::string word = e2e::last_word_of_rank(job.result(), rank);
    EXPECT_FALSE(harm.trains && harm.survivors_speak && word.empty()) << "rank " << rank << " said nothing";
    if (!word.empty()) e2e::expect_blame(word, harm.victim, pid);
  }
  EXPECT_EQ(footprint.left_after(testing::leftover_deadline()), "");
}

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
  hurt_one(harm);
}

}  // namespace
}  // namespace lockstep::soak::job_test
