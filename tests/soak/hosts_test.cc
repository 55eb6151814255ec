// SPDX-License-Identifier: Apache-2.0
// One job on three hosts that trains with snapshots and is hurt again and again: ranks are killed and stopped,
// launchers are killed, a cable is taken out, a launcher or a whole host stands still. Each time the first host's
// launcher must name who came to harm, and nobody else, and the job goes on. At the end nothing is left, that launcher
// has not grown, and the weights have the bits of a run that nobody disturbed: steps are cut into fixed micro-batches,
// so that hosts that come and go change none.
//
// SOAK_KILLS (12) harms, drawn by SOAK_SEED (1): half of them to a job of a fixed number of hosts, half to one of two
// or three; scripts/test --extra soak hosts sets them. With SOAK_SHARD=1 the optimizer is in shards of the ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/random.h"
#include "runtime/job/exit_code.h"
#include "tests/multihost/launched_hosts.h"
#include "tests/support/leftovers.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::soak::hosts_test {
namespace {

using testing::Footprint;
using ::testing::HasSubstr;
using testing::kHosts;
using testing::live_ranks;
using testing::Process;
using testing::Result;
using testing::wait_until;
using testing::Words;

constexpr int kRanks = 2 * kHosts;
constexpr int kEndless = 100'000'000;

struct Signal {
  int number;
  const char* name;
};
constexpr std::array<Signal, 3> kDeadly = {{{SIGKILL, "SIGKILL"}, {SIGSEGV, "SIGSEGV"}, {SIGABRT, "SIGABRT"}}};
constexpr Signal kStop = {SIGSTOP, "SIGSTOP"};

struct Harm {
  enum class Kind { rank, launcher, cable, standstill };
  Kind kind = Kind::rank;
  int victim = 0;  // rank, or host
  Signal signal = kDeadly[0];
  bool is_whole = false;  // standstill: of all processes of the host; else of its launcher alone
  int reports = 0;        // of rank 0, one for ten steps, that come before; 0: the start has only begun

  std::string describe() const {
    const std::string of_host = kind == Kind::launcher ? "SIGKILL to the launcher of host "
                                : kind == Kind::cable  ? "no cable at host "
                                : is_whole             ? "standstill of host "
                                                       : "standstill of the launcher of host ";
    return (kind == Kind::rank ? signal.name + std::string(" to rank ") : of_host) + std::to_string(victim) +
           (reports == 0 ? " as a start begins" : " after " + std::to_string(10 * reports) + " steps");
  }
};

// Every six harms have one of each kind: three ranks, one of them rank 0 and one stopped, a launcher, a cable, a
// standstill.
std::vector<Harm> draw(std::uint64_t seed, int count) {
  Generator random(seed);
  const auto below = [&random](int limit) { return static_cast<int>(random.below(static_cast<std::uint64_t>(limit))); };
  std::vector<Harm> harms;
  std::vector<int> deck;
  bool was_early = true;
  while (static_cast<int>(harms.size()) < count) {
    if (deck.empty()) deck = {0, 1, 2, 3, 4, 5};
    const auto card = deck.begin() + below(static_cast<int>(deck.size()));
    Harm harm;
    harm.kind = *card < 3    ? Harm::Kind::rank
                : *card == 3 ? Harm::Kind::launcher
                : *card == 4 ? Harm::Kind::cable
                             : Harm::Kind::standstill;
    harm.victim = *card == 0 ? 0 : *card < 3 ? below(kRanks) : *card < 5 ? 1 + below(kHosts - 1) : below(kHosts);
    harm.is_whole = *card == 5 && below(2) == 0;
    const bool stops = *card == 1;
    deck.erase(card);
    harm.signal = stops ? kStop : kDeadly[static_cast<std::size_t>(below(kDeadly.size()))];
    harm.reports = 3 + below(20);
    // Not twice in a row: the job ends after three starts without a new step. A rank that is stopped before it has met
    // the others is waited for, and only the launcher says so.
    const bool may_be_early = !was_early && harm.kind == Harm::Kind::rank && harm.signal.number != SIGSTOP;
    was_early = may_be_early && below(4) == 0;
    if (was_early) harm.reports = 0;
    harms.push_back(harm);
  }
  return harms;
}

std::int64_t setting(const char* name, std::int64_t otherwise) {
  return Environment::of_process().get_int(name).value_or(otherwise);
}

// Of a process, in KiB, as /proc says it; 0 if it has ended.
std::int64_t resident_memory(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::atoll(line.c_str() + 6);
  }
  return 0;
}

class SoakHosts : public testing::LaunchedHosts {
 protected:
  void SetUp() override {
    testing::LaunchedHosts::SetUp();
    lets_store_give_ranks_ = true;
  }

  void start_all(int steps) {
    launchers_ = on_each(kHosts, [&](int host) { return launcher_on(host, "job", steps); });
    start_ = 1;
  }
  Process launcher_on(int host, const std::string& name, int steps) {
    Words flags = {"--max-restarts", "100000", "--grace", "3"};
    const Words program = {TRAINING_PROGRAM, folder(name), folder(name + ".weights"), std::to_string(steps)};
    return launch(host, 2, program, flags,
                  {{"LOCKSTEP_LIVENESS", "on"},
                   {"LOCKSTEP_TEST_MICRO_BATCHES", "6"},
                   {"LOCKSTEP_TEST_SHARD", std::to_string(setting("SOAK_SHARD", 0))}});
  }
  Process& first() { return launchers_[0]; }
  std::string folder(const std::string& name) const { return (folder_ / name).string(); }
  std::string weights(const std::string& name) const {
    std::ifstream in(folder(name + ".weights"), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  bool is_elastic() const { return nnodes_ == "2:3"; }

  // All hosts but `without` have begun the start that is next.
  [[nodiscard]] bool await_start(int ranks, std::optional<int> without = {}) {
    const std::string line =
        " of " + std::to_string(ranks) + (start_ == 1 ? "\n" : ", start " + std::to_string(start_) + "\n");
    for (int host = 0; host < kHosts; ++host) {
      if (host != without && !launchers_[static_cast<std::size_t>(host)].await_output(line)) return false;
    }
    ++start_;
    return true;
  }
  // All hosts have begun the start that is next; or the one after it, where the next is that of some of them.
  [[nodiscard]] bool await_start_of_all() {
    const auto has_begun = [this](int start) {
      const std::string line = " of " + std::to_string(kRanks) + ", start " + std::to_string(start) + "\n";
      return std::ranges::all_of(launchers_,
                                 [&](const Process& it) { return it.err().find(line) != std::string::npos; });
    };
    if (!wait_until([&] { return has_begun(start_) || has_begun(start_ + 1); })) return false;
    start_ += has_begun(start_) ? 1 : 2;
    return true;
  }
  // Rank 0 has reported its steps so many times in the start that is under way.
  [[nodiscard]] bool await_reports(int reports) {
    static const std::string kReport = "[rank 0] at ";
    return first().await_output(kReport, occurrences(first().out(), kReport) + reports);
  }

  void hurt(const Harm& harm) {
    if (harm.reports > 0) {
      ASSERT_TRUE(await_reports(harm.reports));
    }
    said_ = first().err().size();
    switch (harm.kind) {
      case Harm::Kind::rank: hurt_rank(harm); break;
      case Harm::Kind::launcher: kill_launcher(harm.victim); break;
      case Harm::Kind::cable: cut_cable(harm.victim); break;
      case Harm::Kind::standstill: stand_still(harm); break;
    }
  }

  void hurt_rank(const Harm& harm) {
    ASSERT_TRUE(wait_until([&] { return live_ranks(TRAINING_PROGRAM).contains(harm.victim); }));
    const pid_t pid = live_ranks(TRAINING_PROGRAM).at(harm.victim);
    ASSERT_EQ(kill(pid, harm.signal.number), 0);
    ASSERT_TRUE(await_start(kRanks));
    const std::string verdict = verdict_on("rank ");
    const std::string who = "rank " + std::to_string(harm.victim) + " (host ";
    EXPECT_THAT(verdict, HasSubstr(who));
    EXPECT_THAT(verdict, HasSubstr("pid " + std::to_string(pid) + ")"));
    if (harm.signal.number != SIGSTOP) {
      EXPECT_THAT(verdict, HasSubstr(harm.signal.name));
    }
    EXPECT_THAT(new_words(), HasSubstr("rank " + std::to_string(harm.victim) + " failed first: "));
    EXPECT_EQ(verdict_on("host "), "");
  }

  void kill_launcher(int host) {
    Process& launcher = launchers_[static_cast<std::size_t>(host)];
    const pid_t pid = launcher.pid();
    launcher.send(SIGKILL);
    launcher.wait();
    ASSERT_TRUE(is_left_by(host));
    replace_launcher(host);
    ASSERT_TRUE(await_start(kRanks));
    expect_lost_host(host, "is gone: its launcher (pid " + std::to_string(pid) + ") has ended");
  }

  void cut_cable(int host) {
    hosts_->cut(host);
    ASSERT_TRUE(is_left_by(host));
    ASSERT_TRUE(launchers_[static_cast<std::size_t>(host)].await_output("joining the job again, if the job's store at ",
                                                                        ++rejoins_[host]));
    hosts_->mend(host);
    ASSERT_TRUE(await_start(kRanks));
    expect_lost_host(host, ") does not answer");
  }

  // As long as the others need to take the host for lost.
  void stand_still(const Harm& harm) {
    const int host = harm.victim;
    static const std::string kGone = ", which has the job's store, is gone: ";
    std::vector<int> said;
    for (const Process& launcher : launchers_) said.push_back(occurrences(launcher.err(), kGone));
    const Process& launcher = launchers_[static_cast<std::size_t>(host)];
    const auto pids = harm.is_whole ? processes_of(launcher) : std::vector<pid_t>{launcher.pid()};
    for (const pid_t pid : pids) kill(pid, SIGSTOP);
    if (host != 0) {
      ASSERT_TRUE(is_left_by(host));
    } else {
      for (std::size_t other = 1; other < launchers_.size(); ++other) {
        ASSERT_TRUE(launchers_[other].await_output(kGone, said[other] + 1));
        ++rejoins_[static_cast<int>(other)];
      }
    }
    for (const pid_t pid : pids) kill(pid, SIGCONT);
    if (host != 0) ++rejoins_[host];
    ASSERT_TRUE(await_start_of_all());
    expect_lost_host(host, host == 0 ? "stood still for " : ") does not answer");
  }
  static int occurrences(const std::string& text, const std::string& words) {
    int found = 0;
    for (auto at = text.find(words); at != text.npos; at = text.find(words, at + 1)) ++found;
    return found;
  }

  // The job has seen that the host is gone: the others wait, or go on without it.
  [[nodiscard]] bool is_left_by(int host) {
    if (!is_elastic()) return await_new_words("waiting for 1 host (--rdzv-timeout ");
    return await_start(kRanks - 2, host) && await_reports(2);
  }
  void replace_launcher(int host) {
    launchers_ = on_each(kHosts, [&](int other) {
      return other == host ? launcher_on(host, "job", kEndless)
                           : std::move(launchers_[static_cast<std::size_t>(other)]);
    });
    rejoins_.erase(host);
  }
  void expect_lost_host(int host, const std::string& how) {
    const std::string verdict = verdict_on("host ");
    EXPECT_THAT(verdict, HasSubstr("host host" + std::to_string(host) + " (node rank "));
    EXPECT_THAT(verdict, HasSubstr(how));
    EXPECT_EQ(verdict_on("rank "), "") << "no rank is to blame";
  }

  // What the first host's launcher has said since the harm.
  std::string new_words() { return first().err().substr(said_); }
  [[nodiscard]] bool await_new_words(const std::string& words) {
    return wait_until([&] { return new_words().find(words) != std::string::npos || !first().running(); }) &&
           new_words().find(words) != std::string::npos;
  }
  // Its first line that says how a rank, or a host, came to harm.
  std::string verdict_on(const std::string& kind) {
    std::istringstream lines(new_words());
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("lockstep run: " + kind)) return line;
    }
    return {};
  }

  // So many harms, one after the other; then the job is asked to stop, and does.
  void soak(int harms, std::int64_t seed) {
    start_all(kEndless);
    ASSERT_TRUE(await_start(kRanks));
    ASSERT_TRUE(await_reports(3));
    std::int64_t memory = 0;
    int number = 0;
    for (const Harm& harm : draw(static_cast<std::uint64_t>(seed), harms)) {
      SCOPED_TRACE(harm.describe());
      footprint_.look();
      // Of the first harms it has grown to its size.
      if (number++ <= kHarmsToGrow) memory = std::max(memory, resident_memory(first().pid()));
      std::printf("%s: %s; launcher %lld KiB\n", nnodes_.c_str(), harm.describe().c_str(),
                  static_cast<long long>(resident_memory(first().pid())));
      std::fflush(stdout);
      hurt(harm);
      if (HasFailure()) return;
    }
    ASSERT_TRUE(await_reports(3));
    EXPECT_LE(resident_memory(first().pid()), memory + kMostGrowth) << "KiB; it was " << memory << " KiB";
    stop();
  }
  void stop() {
    first().send(SIGTERM);
    for (const Result& result : ends_of(launchers_, kExitRequeue)) {
      EXPECT_THAT(result.err, HasSubstr("got SIGTERM; exit code 75"));
    }
    expect_nothing_left();
  }

  // The job goes on to its end, and another one does all of it.
  void expect_bits_of_an_undisturbed_run() {
    const std::string out = first().out();
    const auto last = out.rfind("[rank 0] at ");
    ASSERT_NE(last, std::string::npos);
    const int steps = std::atoi(out.c_str() + last + 12) + 50;
    for (const std::string name : {"job", "undisturbed"}) {
      auto launchers = on_each(kHosts, [&, &of = name](int host) { return launcher_on(host, of, steps); });
      for (Process& launcher : launchers) {
        const Result result =
            launcher.wait(Deadline::after(testing::kPatience + std::chrono::milliseconds(20) * steps));
        EXPECT_EQ(result.exit_code, 0) << result.err;
      }
    }
    EXPECT_FALSE(weights("undisturbed").empty());
    EXPECT_EQ(weights("job"), weights("undisturbed")) << "of " << steps << " steps";
  }

  void expect_nothing_left() {
    EXPECT_EQ(footprint_.left_after(testing::leftover_deadline()), "");
    for (int host = 0; host < kHosts; ++host) {
      const Result sockets = testing::run(hosts_->command(host, {"cat", "/proc/net/tcp", "/proc/net/tcp6"}));
      EXPECT_EQ(sockets.out.find(" 0A "), std::string::npos) << "host " << host << " listens:\n" << sockets.out;
    }
    const Result verified = testing::run({LOCKSTEP_PROGRAM, "snapshots", "--verify", folder("job")});
    EXPECT_EQ(verified.exit_code, 0) << verified.out << verified.err;
  }

  static constexpr int kHarmsToGrow = 4;
  static constexpr std::int64_t kMostGrowth = 4096;  // KiB

  const testing::TemporaryFolder folder_;
  Footprint footprint_;
  std::vector<Process> launchers_;  // by host
  std::map<int, int> rejoins_;      // of the launcher that a host has now
  int start_ = 1;                   // the next one, from 1
  std::size_t said_ = 0;            // bytes that the first host's launcher had said before the harm
};

const int kKills = static_cast<int>(setting("SOAK_KILLS", 12));
const std::int64_t kSeed = 2 * setting("SOAK_SEED", 1);

TEST_F(SoakHosts, OfAFixedNumberGoOnAfterEachHarmToTheBitsOfAnUndisturbedRun) {
  soak((kKills + 1) / 2, kSeed);
  if (!HasFailure()) expect_bits_of_an_undisturbed_run();
}

TEST_F(SoakHosts, ThatMayComeAndGoEndWithTheBitsOfAnUndisturbedRun) {
  nnodes_ = "2:3";
  soak(kKills / 2, kSeed + 1);
  if (!HasFailure()) expect_bits_of_an_undisturbed_run();
}

}  // namespace
}  // namespace lockstep::soak::hosts_test
