// SPDX-License-Identifier: Apache-2.0
// Whom a rank is connected with over TCP, where hosts have several ranks: its counterparts, and whom it has something
// for. Ranks as threads, each with its end of a connection.
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <functional>
#include <latch>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/store/hash_store.h"
#include "tests/conformance/errors.h"
#include "tests/support/announcing_store.h"
#include "tests/support/child.h"
#include "tests/support/groups.h"
#include "tests/support/limited_to.h"
#include "tests/support/own_sockets.h"
#include "tests/support/rank_threads.h"
#include "tests/support/stale_watches.h"
#include "tests/support/tcp_stranger.h"
#include "tests/support/wait_until.h"

namespace lockstep::testing::connections_test {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

int ranks_of(const std::vector<int>& hosts) {
  int ranks = 0;
  for (const int of_host : hosts) ranks += of_host;
  return ranks;
}

int count_of(bool (OwnSocket::*is_one)() const) {
  const auto sockets = own_sockets();
  return static_cast<int>(std::count_if(sockets.begin(), sockets.end(), std::mem_fn(is_one)));
}
int connections() { return count_of(&OwnSocket::is_connected); }
int ports() { return count_of(&OwnSocket::listens); }

void message(const Group& group, int from, int to) {
  std::vector<float> x(10000, static_cast<float>(group->rank() + 1));
  if (group->rank() == from) group->send(view(x), to).wait();
  if (group->rank() == to) group->recv(view(x), from).wait();
  if (group->rank() == to) {
    EXPECT_EQ(x, std::vector<float>(10000, static_cast<float>(from + 1)));
  }
}

void all_to_all(const Group& group) {
  const auto size = static_cast<std::size_t>(group->size());
  std::vector<float> in(1000 * size, static_cast<float>(group->rank()));
  std::vector<float> out(in.size());
  group->all_to_all(view(in), view(out)).wait();
  for (std::size_t r = 0; r < size; ++r) ASSERT_EQ(out[1000 * r + 999], static_cast<float>(r));
}

struct Case {
  std::vector<int> hosts;
  int pairs;      // of counterparts
  int listening;  // ranks that are not connected with all, once 0 and 1 are
};

TEST(Connections, AreOfCounterpartsUntilThereIsSomethingForAnother) {
  const std::vector<Case> cases = {
      {{2, 2}, 2, 4}, {{2, 2, 2}, 6, 6}, {{2, 1}, 2, 0}, {{4, 4}, 4, 8}, {{3, 1, 2}, 8, 5}};
  for (const Case& one : cases) {
    const int ranks = ranks_of(one.hosts);
    SCOPED_TRACE(ranks);
    std::barrier all(ranks);
    const int others = connections();
    const int other_ports = ports();
    // What all but rank 0 wait for: how many pairs there are.
    const auto expect_pairs = [&](const Group& group, int wanted) {
      all.arrive_and_wait();
      if (group->rank() == 0) {
        // Where both ends begin at once one of the two connections goes again, a moment later.
        EXPECT_TRUE(wait_until([&] { return connections() - others == 2 * wanted; }))
            << connections() - others << ", not " << 2 * wanted;
      }
      all.arrive_and_wait();
    };
    run_ranks(ranks,
              [&](const Group& group) {
                expect_pairs(group, one.pairs);
                std::vector<float> x(100000, 1.0f);
                group->all_reduce(view(x)).wait();
                group->broadcast(view(x), ranks - 1).wait();
                group->barrier().wait();
                expect_pairs(group, one.pairs);
                message(group, 0, 1);
                expect_pairs(group, one.pairs + 1);
                message(group, 1, 0);
                expect_pairs(group, one.pairs + 1);
                if (group->rank() == 0) {
                  EXPECT_EQ(ports() - other_ports, one.listening);
                }
                all_to_all(group);
                expect_pairs(group, ranks * (ranks - 1) / 2);
                group->barrier().wait();
                // Who is connected with all listens no more.
                if (group->rank() == 0) {
                  EXPECT_TRUE(wait_until([&] { return ports() == other_ports; }));
                }
                all.arrive_and_wait();
              },
              {.hosts = one.hosts});
  }
}

// A rank may fork. Its child keeps every connection open, and with it what epoll watches of those that are closed here.
TEST(Connections, ThatAreClosedAreNotWatchedThroughAForkedChild) {
  const int others = connections();
  std::barrier all(3);
  std::barrier stayed(2);
  std::optional<Child> child;
  run_ranks(3,
            [&](const Group& group) {
              all_to_all(group);
              all.arrive_and_wait();
              if (group->rank() == 0) {
                child.emplace([](const Line& line) {
                  char over = 0;
                  line.hear(over);
                  return 0;
                });
              }
              all.arrive_and_wait();
              if (group->rank() == 2) return;
              EXPECT_TRUE(wait_until([&] { return connections() - others == 2; })) << "rank 2 has left";
              EXPECT_TRUE(wait_until([] { return stale_watches() == 0; })) << stale_watches();
              stayed.arrive_and_wait();
            },
            {.hosts = {1, 1, 1}});
}

// Both ends of each pair begin at the same time, and have something for each other at once.
TEST(Connections, ThatBothEndsBeginAtOnceCarryEverythingOnce) {
  for (int round = 0; round < 8; ++round) {
    std::barrier all(5);
    run_ranks(5,
              [&](const Group& group) {
                const int rank = group->rank();
                std::vector<std::vector<float>> sent(5, std::vector<float>(round % 2 == 0 ? 100 : 50000));
                std::vector<std::vector<float>> got = sent;
                std::vector<Work> works;
                all.arrive_and_wait();
                for (int message = 0; message < 3; ++message) {
                  for (int other = 0; other < 5; ++other) {
                    if (other == rank) continue;
                    auto& out = sent[static_cast<std::size_t>(other)];
                    auto& in = got[static_cast<std::size_t>(other)];
                    std::fill(out.begin(), out.end(), static_cast<float>(100 * message + 10 * rank + other));
                    works.push_back(group->send(view(out), other));
                    works.push_back(group->recv(view(in), other));
                  }
                  for (const Work& work : works) work.wait();
                  works.clear();
                  for (int other = 0; other < 5; ++other) {
                    if (other == rank) continue;
                    const auto& in = got[static_cast<std::size_t>(other)];
                    EXPECT_EQ(in.front(), static_cast<float>(100 * message + 10 * other + rank));
                    EXPECT_EQ(in.back(), in.front());
                  }
                }
              },
              {.hosts = {2, 3}});
  }
}

// Ranks as threads of groups on hosts, whose ports the test knows.
class Ports {
 public:
  explicit Ports(std::vector<int> hosts)
      : hosts_(std::move(hosts)),
        store_(std::make_shared<AnnouncingStore>(std::make_shared<store::HashStore>(),
                                                 [this](std::string_view key, std::string_view value) {
                                                   const std::string_view prefix = "job/tcp/";
                                                   if (!key.starts_with(prefix) || key.size() != prefix.size() + 1)
                                                     return;
                                                   const std::lock_guard<std::mutex> lock(mutex_);
                                                   of_rank_[key.back() - '0'] = value.substr(value.find(' ') + 1);
                                                 })) {
    set_log_sink([this](LogLevel, std::string_view line) {
      const std::lock_guard<std::mutex> lock(mutex_);
      log_.append(line).push_back('\n');
    });
  }
  ~Ports() { set_log_sink({}); }

  void run(const std::function<void(const Group&)>& body) {
    std::vector<int> members;
    for (int r = 0; r < ranks_of(hosts_); ++r) members.push_back(r);
    std::vector<std::thread> threads;
    for (const int rank : members) {
      threads.emplace_back([&, rank] { body(make_group("job", "tcp", members, rank, store_, hosts_)); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  std::string of(int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return of_rank_[static_cast<std::size_t>(rank)];
  }
  std::string log() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return log_;
  }

 private:
  const std::vector<int> hosts_;
  std::mutex mutex_;
  std::array<std::string, 10> of_rank_;
  std::string log_;
  const std::shared_ptr<store::Store> store_;
};

// Ranks 0 and 1 are of one host: their ports stay open. There are more strangers than places, and most are silent.
TEST(Connections, StrangersAmidAJobAreTurnedAwayAndKeepOutNoRank) {
  Ports ports({2, 1});
  std::vector<TcpStranger> strangers(70);
  ports.run([&](const Group& group) {
    group->barrier().wait();
    if (group->rank() == 0) {
      for (TcpStranger& one : strangers) EXPECT_EQ(one.connect(ports.of(1)), 0);
      strangers.front().send("GET / HTTP/1.1\r\nHost: host0\r\nUser-Agent: a scanner of ports\r\n\r\n");
      EXPECT_TRUE(wait_until([&] { return ports.log().find("it sent another greeting") != std::string::npos; }))
          << "rank 1 waits in a barrier, or not even there";
    }
    group->barrier().wait();
    message(group, 0, 1);
    group->barrier().wait();
  });
  expect_text(ports.log(), {"TCP: rank 1 (host ", "turned away 127.0.0.1:", "it sent another greeting", " more\n"});
}

// Rank 2 hears of it from a rank of its host, and finds nobody at the port.
// Both ranks are of this process here, so both run into its limit, and either may be the first to say so.
TEST(Connections, ARankThatMayHaveNoMoreSocketsIsNotTheOthersDeath) {
  std::barrier all(4);
  run_ranks(4,
            [&](const Group& group) {
              group->barrier().wait();
              all.arrive_and_wait();
              std::optional<LimitedTo> no_more;
              if (group->rank() == 0) no_more.emplace(RLIMIT_NOFILE, 0);
              all.arrive_and_wait();
              std::vector<float> x(10);
              expect_failure<Error>(
                  [&] {
                    if (group->rank() == 0) group->send(view(x), 3).wait();
                    group->barrier().wait();
                  },
                  {.kind = Cause::Kind::failed, .text = "'ulimit -n' allows 0"});
              all.arrive_and_wait();
              no_more.reset();
              all.arrive_and_wait();
            },
            {.hosts = {2, 2}});
}

TEST(Connections, ARankThatHasLeftIsNoDeathForWhoWantsToConnectWithIt) {
  std::latch passed(4);  // the first barrier, which the failure would end too
  std::latch left(1);
  std::latch named(1);
  const Cause wanted{.kind = Cause::Kind::left, .rank = 1};
  run_ranks(4,
            [&](Group group) {
              const int rank = group->rank();
              group->barrier().wait();
              passed.arrive_and_wait();
              if (rank == 1) {
                group.reset();
                return left.count_down();
              }
              (rank == 2 ? left : named).wait();
              std::vector<float> x(10);
              if (rank == 2) {
                expect_failure<PeerLost>([&] { group->send(view(x), 1).wait(); }, wanted);
                return named.count_down();
              }
              expect_failure<PeerLost>([&] { group->barrier().wait(); }, wanted);
            },
            {.hosts = {2, 2}});
}

}  // namespace
}  // namespace lockstep::testing::connections_test
