// SPDX-License-Identifier: Apache-2.0
// Who is stopped, who is missing at the start, and who is slow: as state machines, and of real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/base/system.h"
#include "launcher/process/process_table.h"
#include "launcher/watch/rank_watch.h"
#include "launcher/watch/slow_rank.h"
#include "tests/support/wait_until.h"

namespace lockstep::launcher::rank_watch_test {
namespace {

using namespace std::chrono_literals;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using News = StoppedRanks::News;
using Time = ObservedClock::Time;

TEST(StoppedRanks, AStopThatLastsIsSaidOnceAndSoIsItsEnd) {
  StoppedRanks stopped(1s);
  Time now{1000s};
  const auto look = [&](bool is_stopped) {
    now += 500ms;
    stopped.observe(now);
    EXPECT_EQ(stopped.see(0, false), News::none) << "another rank";
    return stopped.see(1, is_stopped);
  };
  EXPECT_EQ(look(true), News::none);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(look(true), News::none) << i;
  EXPECT_EQ(look(true), News::stopped);
  EXPECT_EQ(stopped.stopped_for(1), 2s);
  EXPECT_EQ(look(true), News::none) << "once";
  EXPECT_EQ(look(false), News::goes_on);
  EXPECT_EQ(look(false), News::none);
  EXPECT_EQ(look(true), News::none) << "a new stop has its own time";
  EXPECT_EQ(look(false), News::none) << "a short stop is never said";
}

TEST(StoppedRanks, TimeInWhichTheLauncherDidNotRunDoesNotCount) {
  StoppedRanks stopped(1s);
  Time now{1000s};
  stopped.observe(now);
  EXPECT_EQ(stopped.see(0, true), News::none);
  now += 1h;  // Ctrl-Z
  stopped.observe(now);
  EXPECT_EQ(stopped.see(0, true), News::none);
  EXPECT_EQ(stopped.stopped_for(0), 1s);
}

TEST(StoppedRanks, TheTextNamesTheProcessAndWhatToDo) {
  const std::string rank = "rank 1 (host n1, pid 7)";
  EXPECT_EQ(describe_stop(rank, 7, {.pid = 7, .name = "sh", .signal = SIGSTOP}, 2100ms, true),
            "rank 1 (host n1, pid 7) is stopped (SIGSTOP) for 2.1 s of 2 s allowed; 'kill -CONT 7' resumes it, and "
            "LOCKSTEP_LIVENESS=off waits for that");
  EXPECT_EQ(describe_stop(rank, 7, {.pid = 9, .name = "train"}, 2100ms, false),
            "rank 1 (host n1, pid 7): its process train (pid 9) is stopped (SIGSTOP or Ctrl-Z) for 2.1 s, and is "
            "waited for, as LOCKSTEP_LIVENESS=off says; 'kill -CONT 9' resumes it");
  EXPECT_THAT(describe_stop(rank, 7, {.pid = 7, .name = "sh", .signal = SIGTTIN}, 2s, true),
              HasSubstr("; the process read from the terminal"));
}

// A child, its child, and so on: each waits for the next, the last for ever. Ends with the object.
class Chain {
 public:
  explicit Chain(int length) : pids_(make_pipe()) {
    first_ = fork();
    if (first_ == 0) live(length);
    for (int i = 0; i < length; ++i) {
      pid_t pid = 0;
      EXPECT_EQ(read(pids_.read_end.get(), &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
      line_.push_back(pid);
    }
  }
  ~Chain() {
    for (const pid_t pid : line_) kill(pid, SIGKILL);
    waitpid(first_, nullptr, 0);
  }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  pid_t operator[](std::size_t place) const { return line_.at(place); }
  void stop(std::size_t place) const {
    kill(line_.at(place), SIGSTOP);
    EXPECT_TRUE(lockstep::testing::wait_until([&] { return process_entry(line_.at(place))->state == 'T'; }));
  }

 private:
  [[noreturn]] void live(int length) const {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const pid_t self = getpid();
    if (write(pids_.write_end.get(), &self, sizeof self) != sizeof self) _exit(1);
    if (length > 1) {
      const pid_t child = fork();
      if (child == 0) live(length - 1);
    }
    while (true) pause();
  }

  Pipe pids_;
  pid_t first_ = -1;
  std::vector<pid_t> line_;
};

TEST(FindStopped, FindsTheOneThatWasStartedAndSaysBySignal) {
  const Chain chain(1);
  EXPECT_FALSE(find_stopped(chain[0], 0));
  chain.stop(0);
  // A sanitizer's child has a second thread, and its parent is told when both stand still.
  siginfo_t stopped{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(chain[0]), &stopped, WSTOPPED | WNOWAIT), 0);
  const auto found = find_stopped(chain[0], 0);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->pid, chain[0]);
  EXPECT_EQ(found->signal, SIGSTOP);
}

TEST(FindStopped, LooksBehindWrappersAndOfAMemberAtItsOwnLine) {
  const Chain chain(4);
  chain.stop(3);
  const auto deep = find_stopped(chain[0], 0);  // before there is a member
  ASSERT_TRUE(deep);
  EXPECT_EQ(deep->pid, chain[3]);
  EXPECT_EQ(deep->signal, 0) << "no child of this process";
  EXPECT_TRUE(find_stopped(chain[0], 1)) << "a member that has gone; init is below nobody of ours";
  EXPECT_FALSE(find_stopped(chain[0], chain[2])) << "a worker of the member's, say";
  chain.stop(1);
  const auto found = find_stopped(chain[0], chain[2]);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->pid, chain[1]) << "a wrapper between";
}

TEST(FindStopped, AProcessInADebuggerIsNotStopped) {
  const Chain chain(1);
  ASSERT_EQ(ptrace(PTRACE_SEIZE, chain[0], nullptr, nullptr), 0);
  kill(chain[0], SIGSTOP);
  ASSERT_EQ(waitpid(chain[0], nullptr, __WALL), chain[0]);
  EXPECT_FALSE(find_stopped(chain[0], 0));
}

TEST(ProcessTable, DescendantsOfOneAreThoseOfTheWholeTable) {
  const Chain chain(3);
  std::vector<pid_t> read;
  for (const auto& entry : descendants_of(chain[0])) read.push_back(entry.pid);
  std::vector<pid_t> table;
  for (const auto& entry : descendants(process_table(), chain[0], {})) table.push_back(entry.pid);
  EXPECT_EQ(read, table);
  EXPECT_EQ(read, (std::vector<pid_t>{chain[1], chain[2]}));
  EXPECT_TRUE(path_between(chain[2], chain[0]).empty()) << "the other way round";
  EXPECT_EQ(path_between(chain[0], chain[2]).size(), 3u);
}

std::vector<membership::MemberView> present(std::initializer_list<int> ranks, int world_size = 4) {
  std::vector<membership::MemberView> members;
  for (const int rank : ranks) {
    members.push_back({.scope = "/0", .info = {.rank = rank, .world_size = world_size, .process = {}}});
  }
  return members;
}

class Missing : public ::testing::Test {
 protected:
  std::optional<MissingRanks::Report> after(std::chrono::milliseconds time,
                                            const std::vector<membership::MemberView>& members) {
    std::optional<MissingRanks::Report> last;
    for (auto done = 0ms; done < time; done += 500ms) {
      now_ += 500ms;
      if (auto report = missing_.look(now_, members)) {
        EXPECT_FALSE(last) << "one in this time";
        last = std::move(report);
      }
    }
    return last;
  }

  Time now_{1000s};
  MissingRanks missing_{4, 1s};
};

TEST_F(Missing, AreNamedEveryTenSecondsWhileOthersWait) {
  EXPECT_FALSE(after(10s, present({0, 2})));
  for (const auto waited : {10s, 20s, 30s}) {
    const auto report = after(waited == 10s ? 500ms : 10000ms, present({0, 2}));
    ASSERT_TRUE(report) << waited.count();
    EXPECT_EQ(report->missing, (std::vector<int>{1, 3}));
    EXPECT_EQ(report->present, 2);
    EXPECT_EQ(report->waited, waited);
  }
  EXPECT_FALSE(after(60s, present({0, 1, 2, 3}))) << "all are in";
}

TEST_F(Missing, AreNoneOfAProgramThatNeverRegistersOrAGroupOfSomeRanksOrOnceNobodyWaits) {
  auto failed = present({0, 1, 2});
  for (auto& member : failed) member.state = membership::MemberState::failed;
  for (const auto& members : {present({}), present({0}, 2), failed}) EXPECT_FALSE(after(60s, members));
}

TEST(EndedBeforeTheyCame, AreThoseWhomOthersWaitForAtTheStart) {
  const std::vector<int> ended = {1, 3};
  EXPECT_TRUE(ended_before_they_came(4, present({}), ended).empty()) << "a program that never registers";
  EXPECT_TRUE(ended_before_they_came(4, present({0}, 2), ended).empty()) << "a group of some of the ranks";
  EXPECT_EQ(ended_before_they_came(4, present({0}), ended), (std::vector<int>{1, 3}));
  auto members = present({0, 1, 2});
  EXPECT_EQ(ended_before_they_came(4, members, ended), std::vector<int>{3});
  for (auto& member : members) member.state = membership::MemberState::left;
  EXPECT_TRUE(ended_before_they_came(4, members, ended).empty()) << "nobody waits any more";
}

TEST(MissingText, SaysOfEachWhatItsProcessDoes) {
  const Chain chain(2);
  std::vector<RankProcess> ranks(4);
  for (int rank = 0; rank < 4; ++rank) ranks[static_cast<std::size_t>(rank)].rank = rank;
  ranks[1].pid = chain[0];
  ranks[2].pid = chain[0];
  ranks[2].ending = ExitStatus{.value = 3};
  const MissingRanks::Report report{.present = 2, .missing = {1, 2}, .waited = 10s};
  const auto pid = std::to_string(chain[1]);
  const std::string first =
      "2 of 4 ranks have waited for 10 s in init_process_group; missing: rank 1 (pid " + pid + ", unit_launcher) ";
  const std::string rest = " and has not come to init_process_group; rank 2 (pid " + std::to_string(chain[0]) +
                           ") exited with code 3 before it came";
  const RankMap hosts = {{.name = "a", .ranks = 4}};
  // It is on its way to sleep.
  EXPECT_THAT(describe_missing(report, hosts, ranks, {}),
              AnyOf(StartsWith(first + "sleeps in its own code (state S)" + rest),
                    StartsWith(first + "runs its own code (state R)" + rest)));
  chain.stop(1);
  EXPECT_THAT(describe_missing(report, hosts, ranks, {}),
              HasSubstr("rank 1 (pid " + pid + ", unit_launcher) is stopped (SIGSTOP or Ctrl-Z);"));
}

TEST(MissingText, OfAnotherHostSaysWhichHostOrHowTheRankEnded) {
  const RankMap hosts = with_first_ranks({{.name = "a", .ranks = 1}, {.name = "b", .ranks = 2}});
  RankEnd end;
  end.rank = 2;
  end.host = "b";
  end.pid = 77;
  end.ending = {.value = 3};
  EXPECT_THAT(describe_missing({.present = 1, .missing = {1, 2}, .waited = 10s}, hosts, {}, std::vector{end}),
              HasSubstr("1 of 3 ranks has waited for 10 s in init_process_group; missing: rank 1 of host b (node rank "
                        "1); rank 2 (host b, pid 77) exited with code 3 before it came"));
}

TEST(SlowRank, IsSaidOnceAndAgainAfterAWhileOrForAnotherCause) {
  SlowRank slow;
  const SlowRank::Time begin{};
  const Straggler data{.rank = 3, .host = "b", .share = 0.14, .cause = Phase::data};
  const Straggler forward{.rank = 3, .host = "b", .share = 0.2, .cause = Phase::forward};
  EXPECT_EQ(slow.look(std::nullopt, begin), "");
  EXPECT_EQ(slow.look(data, begin), "rank 3 (host b) costs 14 % of every step: data");
  EXPECT_EQ(slow.look(data, begin + 9min), "");
  EXPECT_EQ(slow.look(forward, begin + 59s), "");
  EXPECT_EQ(slow.look(forward, begin + 1min), "rank 3 (host b) costs 20 % of every step: forward");
  EXPECT_EQ(slow.look(data, begin + 90s), "");
  EXPECT_EQ(slow.look(std::nullopt, begin + 5min), "");
  EXPECT_EQ(slow.look(forward, begin + 10min), "");
  EXPECT_EQ(slow.look(forward, begin + 11min), "rank 3 (host b) costs 20 % of every step: forward");
}

}  // namespace
}  // namespace lockstep::launcher::rank_watch_test
