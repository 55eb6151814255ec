// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/data_loader.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <future>
#include <latch>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/support/wait_until.h"

namespace lockstep::data::data_loader_test {
namespace {

using lockstep::testing::error_of, lockstep::testing::expect_message, lockstep::testing::expect_text;
using Ids = std::vector<std::int64_t>;
const std::uint64_t kShuffled = EpochOrder::shuffled(1, 0).digest();

// A batch is its ids. Runs `hook` for each that is read.
struct Rows {
  std::int64_t length = 0;
  std::function<void(std::span<const std::int64_t>)> hook = [](auto) {};
  std::int64_t size() const { return length; }
  Ids batch(std::span<const std::int64_t> ids) const {
    hook(ids);
    return {ids.begin(), ids.end()};
  }
};

GlobalBatchSampler in_order(std::int64_t length, std::int64_t batch, int rank = 0, int world = 1) {
  return GlobalBatchSampler(length, rank, world, {.global_batch = batch, .shuffle = false});
}

// Of 40 rows in batches of 6, which are shuffled.
DataLoader<Ids> shuffled(int rank = 0, int world = 1, int workers = 0) {
  return DataLoader(Rows{40}, GlobalBatchSampler(40, rank, world, {.global_batch = 6, .seed = 4}),
                    {.workers = workers});
}

// What a pass hands out.
std::vector<Ids> pass_of(DataLoader<Ids>& loader) {
  std::vector<Ids> batches;
  for (const Ids& batch : loader) batches.push_back(batch);
  return batches;
}
std::vector<Ids> pass_of(DataLoader<Ids>&& loader) { return pass_of(loader); }

TEST(DataLoader, CarriesIdsAndSamples) {
  struct Tens {
    std::int64_t size() const { return 5; }
    std::int64_t get(std::int64_t id) const { return 10 * id; }
  };
  DataLoader loader(BySample(Tens{}), in_order(5, 2), {.workers = 2});
  std::vector<Ids> read;
  for (const auto& [ids, samples] : loader) {
    for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(samples[i], 10 * ids[i]);
    read.push_back(ids);
  }
  EXPECT_EQ(read, (std::vector<Ids>{{0, 1}, {2, 3}, {4}}));
}

TEST(DataLoader, HasAsManyBatchesAsThereAre) {
  EXPECT_EQ(pass_of(DataLoader(Rows{10}, in_order(10, 10, 7, 8))), std::vector<Ids>{Ids()}) << "without rows";
  EXPECT_EQ(pass_of(DataLoader(Rows{0}, in_order(0, 3), {.workers = 2})), std::vector<Ids>());
  EXPECT_EQ(DataLoader(Rows{0}, in_order(0, 3)).num_batches(), 0);
  const LoaderOptions most{.workers = 1, .prefetch = std::numeric_limits<int>::max()};
  EXPECT_EQ(pass_of(DataLoader(Rows{3}, in_order(3, 1), most)), (std::vector<Ids>{{0}, {1}, {2}}));
}

// Batch 0 is read last: its reader waits until batch 2 has been read by another worker.
TEST(DataLoader, ASlowWorkerDelaysItsBatchButNotTheOrder) {
  std::latch third_read(1);
  const Rows rows{6, [&](std::span<const std::int64_t> ids) {
                    if (ids[0] == 0) third_read.wait();
                    if (ids[0] == 4) third_read.count_down();
                  }};
  EXPECT_EQ(pass_of(DataLoader(rows, in_order(6, 2), {.workers = 2})), (std::vector<Ids>{{0, 1}, {2, 3}, {4, 5}}));
}

TEST(DataLoader, ReadsAtMostItsWindowAhead) {
  std::atomic<int> started = 0;
  std::latch window_full(4);
  const Rows rows{100, [&](auto) {
                    if (++started <= 4) window_full.count_down();
                  }};
  DataLoader loader(rows, in_order(100, 1), {.workers = 2, .prefetch = 2});
  int consumed = 0;
  for (auto it = loader.begin(); it != loader.end(); ++it) {
    ++consumed;
    EXPECT_LE(started.load(), consumed + 4);
    if (consumed == 1) window_full.wait();  // it does read ahead
  }
  EXPECT_EQ(consumed, 100);
}

TEST(DataLoader, StopsCleanlyInTheMiddleOfAnEpochAndStartsAnew) {
  DataLoader loader(Rows{1000}, in_order(1000, 1), {.workers = 3});
  for (int round = 0; round < 20; ++round) {
    std::int64_t next = 0;
    for (const Ids& batch : loader) {
      ASSERT_EQ(batch, Ids{next});
      if (++next == round) break;
    }
    loader.set_epoch(round);
  }
}

TEST(DataLoader, AWorkersErrorReachesTheConsumerAtItsBatchWithSampleIds) {
  for (const int workers : {0, 1, 4}) {
    const Rows rows{12, [](std::span<const std::int64_t> ids) {
                      if (ids[0] == 6) throw CorruptData("line 6 is not a number");
                    }};
    DataLoader loader(rows, in_order(12, 3), {.workers = workers});
    auto it = loader.begin();
    EXPECT_EQ(*it, (Ids{0, 1, 2}));
    ++it;
    EXPECT_EQ(*it, (Ids{3, 4, 5}));
    expect_message("data", "a batch that can't be read", error_of<CorruptData>([&] { ++it; }));
    // The consumer may go on: the batch is lost, the order is not.
    ++it;
    EXPECT_EQ(*it, (Ids{9, 10, 11}));
  }
  // The original error is nested in it.
  DataLoader loader(Rows{40, [](auto) { throw std::out_of_range("no such row"); }}, in_order(40, 20), {.workers = 1});
  try {
    loader.begin();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    expect_message("data", "a batch of many rows that can't be read", error.what());
    EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
  }
}

// The program is on its way out with the Timeout, which must not wait for the reader; it may run on for hours, in a
// file system that hangs.
TEST(DataLoader, AReaderThatHangsIsLeftBehindWithItsDataset) {
  const auto released = std::make_shared<std::latch>(1);
  auto owned = std::make_shared<int>();
  const std::weak_ptr<int> dataset = owned;
  std::promise<std::string> seen;
  std::thread program([&seen, released, owned = std::move(owned)]() mutable {
    const auto hangs = [released, owned = std::move(owned)](std::span<const std::int64_t> ids) {
      if (ids[0] > 0) released->wait();
    };
    DataLoader loader(Rows{4, hangs}, in_order(4, 1), {.workers = 2, .timeout = std::chrono::milliseconds(20)});
    seen.set_value(error_of<Timeout>([&] { pass_of(loader); }));
  });
  auto text = seen.get_future();
  const bool is_told = text.wait_for(lockstep::testing::kPatience) == std::future_status::ready;
  EXPECT_TRUE(is_told) << "the program waits for the reader";
  if (is_told) expect_text(text.get(), {"batch 1 of 4 was not read in time"});
  EXPECT_FALSE(dataset.expired()) << "the readers use it";
  released->count_down();
  program.join();
  EXPECT_TRUE(lockstep::testing::wait_until([&] { return dataset.expired(); })) << "the last reader lets go of it";
}

TEST(DataLoader, WorkersTakeNoSignalOfTheProgram) {
  std::atomic<int> taking = 0;
  const Rows rows{4, [&](auto) {
                    sigset_t mask;
                    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
                    if (sigismember(&mask, SIGTERM) == 0) ++taking;
                  }};
  EXPECT_EQ(pass_of(DataLoader(rows, in_order(4, 1), {.workers = 2})).size(), 4u);
  EXPECT_EQ(taking, 0);
}

TEST(DataLoader, RefusesASecondPassAnotherEpochInTheMiddleOfOneAndBadOptions) {
  DataLoader loader(Rows{4}, in_order(4, 1));
  const auto it = loader.begin();
  EXPECT_THROW(loader.set_epoch(1), InvalidArgument);
  EXPECT_THROW(loader.begin(), InvalidArgument);
  EXPECT_THROW(loader.resume(loader.state()), InvalidArgument);
  EXPECT_EQ(loader.epoch(), 0);
  EXPECT_THROW(DataLoader(Rows{4}, in_order(4, 2), {.workers = -1}), InvalidArgument);
  EXPECT_THROW(DataLoader(Rows{4}, in_order(4, 2), {.prefetch = 0}), InvalidArgument);
}

// Stops in the middle of an epoch at three ranks and goes on at two, with workers, which read ahead of what was handed
// out.
TEST(DataLoader, GoesOnBehindWhatWasHandedOut) {
  std::vector<Ids> whole;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    auto loader = shuffled();
    loader.set_epoch(epoch);
    for (const Ids& batch : loader) whole.push_back(batch);
  }
  for (const int workers : {0, 1, 3}) {
    std::vector<Ids> read(whole.size());
    // Reads epochs up to `end`, and stops before step `last`.
    const auto read_on = [&](DataLoader<Ids>& loader, std::size_t step, std::size_t last, std::int64_t end) {
      for (std::int64_t epoch = loader.epoch(); epoch < end; ++epoch) {
        loader.set_epoch(epoch);
        for (const Ids& batch : loader) {
          read.at(step).insert(read.at(step).end(), batch.begin(), batch.end());
          if (++step == last) break;
        }
        EXPECT_TRUE(step == last || loader.state().consumed == 40);
      }
      return step;
    };
    const SamplerState place{.length = 40, .seed = 4, .order = kShuffled, .epoch = 1, .consumed = 12};
    for (int rank = 0; rank < 3; ++rank) {
      auto loader = shuffled(rank, 3, workers);
      EXPECT_EQ(loader.state(), (SamplerState{.length = 40, .seed = 4, .order = kShuffled}));
      EXPECT_EQ(read_on(loader, 0, 9, 2), 9u);
      EXPECT_EQ(loader.state(), place) << "the same on every rank";
    }
    for (int rank = 0; rank < 2; ++rank) {
      auto loader = shuffled(rank, 2, workers);
      loader.resume(place);
      EXPECT_EQ(loader.num_batches(), 7) << "of a whole epoch, for a schedule";
      EXPECT_EQ(loader.batches_in_pass(), 5);
      EXPECT_EQ(read_on(loader, 9, 0, 3), read.size());
    }
    EXPECT_EQ(read, whole) << workers << " workers";
  }
}

TEST(DataLoader, HasNothingLeftOfAnEpochThatWasOver) {
  DataLoader loader(Rows{10}, in_order(10, 5)), other(Rows{10}, in_order(10, 5));
  loader.set_epoch(3);
  EXPECT_EQ(pass_of(loader).size(), 2u);
  const SamplerState over = loader.state(), half{.length = 10, .order = over.order, .epoch = 4, .consumed = 5};
  other.resume(over);
  EXPECT_EQ(other.epoch(), 3);
  other.set_epoch(3);
  EXPECT_EQ(pass_of(other), std::vector<Ids>());
  EXPECT_EQ(other.state(), over);
  EXPECT_EQ(pass_of(other).size(), 2u) << "the place counts once";
  other.resume(half);
  EXPECT_EQ(*other.begin(), (Ids{5, 6, 7, 8, 9}));
  other.resume(half);
  other.set_epoch(5);
  EXPECT_EQ(*other.begin(), (Ids{0, 1, 2, 3, 4})) << "of another epoch";
}

// As torch's loop does: who forgets set_epoch() gets other batches in each epoch.
TEST(DataLoader, StartsTheNextEpochWithEachLoop) {
  auto loader = shuffled(), named = shuffled();
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    const std::vector<Ids> read = pass_of(loader);
    named.set_epoch(epoch);
    EXPECT_EQ(read, pass_of(named)) << epoch;
    EXPECT_EQ(loader.epoch(), epoch);
  }
  EXPECT_EQ(loader.begin()->size(), 6u);  // left early
  EXPECT_EQ(loader.epoch(), 4);
  loader.resume(loader.state());
  EXPECT_EQ(pass_of(loader).size(), 6u) << "the rest of epoch 4";
  EXPECT_EQ(loader.epoch(), 4);
  static_cast<void>(loader.begin());
  EXPECT_EQ(loader.epoch(), 5);
}

// What stands for a process group.
struct Group {
  int rank() const { return 1; }
  int size() const { return 2; }
};

TEST(DataLoader, MakesTheSamplerOfAGroup) {
  DataLoader loader(Rows{10}, Group(), {.global_batch = 4, .shuffle = false, .workers = 1});
  EXPECT_EQ(pass_of(loader), (std::vector<Ids>{{2, 3}, {6, 7}, {9}}));
  EXPECT_EQ(loader.sampler().global_batch(), 4);
  EXPECT_THROW(DataLoader(Rows{10}, Group(), {}), InvalidArgument) << "no global_batch";
}

}  // namespace
}  // namespace lockstep::data::data_loader_test
