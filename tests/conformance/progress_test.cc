// SPDX-License-Identifier: Apache-2.0
// Ranks that wait for several groups, each rank in an order of its own: nobody may sleep while another needs its push.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <latch>
#include <numeric>
#include <random>
#include <thread>

#include "runtime/comm/progress.h"
#include "runtime/store/hash_store.h"
#include "tests/conformance/errors.h"
#include "tests/support/cause_of.h"
#include "tests/support/groups.h"
#include "tests/support/rank_threads.h"
#include "tests/support/wait_until.h"

namespace lockstep::testing::progress_test {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 4;
// Several windows of shared memory: such a collective needs pushes from every rank until it is done.
constexpr std::size_t kElements = 100000;

// A group of some of the test's ranks.
struct Part {
  std::string name;
  std::string backend;
  std::vector<int> ranks;

  bool has(int rank) const { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }
};

// Three groups, any two of which share ranks 1 and 2; the last over the backend that this suite is built for.
const std::vector<Part>& parts() {
  static const std::vector<Part> three = {
      {"low", "shm", {0, 1, 2}}, {"high", "shm", {1, 2, 3}}, {"all", LOCKSTEP_TEST_BACKEND, {0, 1, 2, 3}}};
  return three;
}

// A collective of one group, with the memory that it reduces.
struct Pending {
  std::vector<float> data;
  float wanted = 0;
  Work work;
};

// Starts one collective on each group and waits for them; both orders are drawn.
void round(std::span<const std::shared_ptr<ProcessGroup>> groups, std::mt19937& random, bool is_single_threaded) {
  std::vector<std::size_t> order(groups.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<Pending> pending(groups.size());
  for (const std::size_t i : order) {
    const int size = groups[i]->size();
    pending[i].data.assign(kElements, static_cast<float>(groups[i]->rank() + 1));
    pending[i].wanted = static_cast<float>(size * (size + 1) / 2);
    pending[i].work = groups[i]->all_reduce(BufferView(std::span(pending[i].data)));
  }
  std::shuffle(order.begin(), order.end(), random);
  for (const std::size_t i : order) {
    if (is_single_threaded) {
      pending[i].work.wait();
    } else {
      std::async(std::launch::async, [&] { pending[i].work.wait(); }).get();
    }
    EXPECT_EQ(std::count(pending[i].data.begin(), pending[i].data.end(), pending[i].wanted), kElements);
  }
}

using Groups = std::vector<std::shared_ptr<ProcessGroup>>;

// Runs `body` on every rank, a thread each, with the groups that the rank is in, by the order of parts(). An error is a
// failure of the test.
void run_all(const std::function<void(int rank, const Groups& groups)>& body) {
  const std::shared_ptr<store::Store> store = std::make_shared<store::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Groups groups;
        for (const Part& part : parts()) {
          if (part.has(rank)) groups.push_back(make_group(part.name, part.backend, part.ranks, rank, store));
        }
        body(rank, groups);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Progress, RanksWaitForTheirGroupsInAnyOrderAndAThreadPushesWhatAnotherHasStarted) {
  for (const bool is_single_threaded : {true, false}) {
    for (unsigned seed = 1; seed <= 4; ++seed) {
      run_all([&](int rank, const Groups& groups) {
        std::mt19937 random(seed * kRanks + static_cast<unsigned>(rank));
        for (int i = 0; i < (is_single_threaded ? 10 : 5); ++i) round(groups, random, is_single_threaded);
      });
    }
  }
}

// While nothing moves nobody rings, and no sleep ends without a ring or its time. A loop that spins without a sleep is
// not seen. Counted, not timed.
TEST(Progress, NobodyRingsOrWakesWhileAllWaitForOneThatDoesNotCome) {
  comm::ProgressEngine& progress = comm::ProgressEngine::of_process();
  std::latch started(kRanks - 1);  // all but rank 0
  std::latch over(1);
  run_all([&](int rank, const Groups& groups) {
    std::vector<float> data(kElements, 1.0f);
    Work work;
    if (rank > 0) {
      if (rank < 3) work = groups.front()->all_reduce(BufferView(std::span(data)));
      started.count_down();
    } else {
      started.wait();
      const auto sleep_out = [&](std::uint64_t slices) {
        const std::uint64_t wanted = progress.counts().expired + slices;
        EXPECT_TRUE(wait_until([&] { return progress.counts().expired >= wanted; }));
      };
      sleep_out(4);
      const auto counts = progress.counts();
      const std::uint64_t rung = progress.bell().bell.load();
      sleep_out(6);
      EXPECT_EQ(progress.bell().bell.load(), rung);
      const auto later = progress.counts();
      EXPECT_LE(later.sleeps - counts.sleeps, later.expired - counts.expired + kRanks) << "some are asleep";
      work = groups.front()->all_reduce(BufferView(std::span(data)));
      over.count_down();
    }
    if (rank < 3) work.wait();
    over.wait();
  });
}

TEST(Progress, AGroupThatFailsDoesNotFailTheOthers) {
  std::latch started(2);  // on ranks 1 and 2
  run_all([&](int rank, const Groups& groups) {
    std::mt19937 random(static_cast<unsigned>(rank));
    std::vector<float> data(kElements, 1.0f);
    if (rank == 0) {
      started.wait();
      groups.front()->abort("enough");
      return round(std::span(groups).subspan(1), random, true);
    }
    if (rank == 3) return round(groups, random, true);
    const Work work = groups.front()->all_reduce(BufferView(std::span(data)));
    started.count_down();
    round(std::span(groups).subspan(1), random, true);
    expect_failure<PeerLost>([&] { work.wait(); }, {.kind = Cause::Kind::aborted, .rank = 0, .text = "enough"});
  });
}

}  // namespace
}  // namespace lockstep::testing::progress_test
