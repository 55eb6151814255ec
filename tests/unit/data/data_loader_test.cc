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
#include "tests/support/wait_until.h"

namespace lockstep::data::data_loader_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using lockstep::testing::kPatience;
using lockstep::testing::wait_until;
using Ids = std::vector<std::int64_t>;
const std::uint64_t kShuffled = EpochOrder::shuffled(1, 0).digest();

// Sample i is 10 i.
struct Tens {
  std::int64_t length = 0;
  std::int64_t size() const { return length; }
  std::int64_t get(std::int64_t id) const { return 10 * id; }
};

// Runs `hook` for each batch that is read.
struct Hooked {
  std::int64_t length = 0;
  std::function<void(std::span<const std::int64_t>)> hook;
  std::int64_t size() const { return length; }
  Ids batch(std::span<const std::int64_t> ids) const {
    hook(ids);
    return {ids.begin(), ids.end()};
  }
};

GlobalBatchSampler in_order(std::int64_t length, std::int64_t batch, int rank = 0, int world = 1) {
  return GlobalBatchSampler(length, rank, world, {.global_batch = batch, .shuffle = false});
}

TEST(DataLoader, CarriesIdsAndSamplesAndBatchesWithoutRows) {
  DataLoader loader(BySample(Tens{10}), in_order(10, 10, 7, 8));
  int batches = 0;
  for (const auto& [ids, samples] : loader) {
    EXPECT_TRUE(ids.empty());
    EXPECT_TRUE(samples.empty());
    ++batches;
  }
  EXPECT_EQ(batches, 1);

  DataLoader other(BySample(Tens{5}), in_order(5, 2), {.workers = 2});
  std::vector<Ids> read;
  for (const auto& [ids, samples] : other) {
    for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(samples[i], 10 * ids[i]);
    read.push_back(ids);
  }
  EXPECT_EQ(read, (std::vector<Ids>{{0, 1}, {2, 3}, {4}}));
}

TEST(DataLoader, OrderDoesNotDependOnTheNumberOfWorkers) {
  std::vector<std::vector<Ids>> runs;
  for (const int workers : {0, 1, 2, 5}) {
    DataLoader loader(BySample(Tens{101}), GlobalBatchSampler(101, 1, 3, {.global_batch = 8, .seed = 4}),
                      {.workers = workers});
    std::vector<Ids> run;
    for (int epoch = 0; epoch < 3; ++epoch) {
      loader.set_epoch(epoch);
      for (const auto& batch : loader) run.push_back(batch.ids);
    }
    runs.push_back(run);
  }
  for (const auto& run : runs) EXPECT_EQ(run, runs[0]);
  EXPECT_EQ(runs[0].size(), 39u);
  EXPECT_NE(runs[0][0], runs[0][13]) << "epochs are shuffled anew";
}

// Batch 0 is read last: its reader waits until batch 2 has been read by another worker.
TEST(DataLoader, ASlowWorkerDelaysItsBatchButNotTheOrder) {
  std::latch third_read(1);
  DataLoader loader(Hooked{6,
                           [&](std::span<const std::int64_t> ids) {
                             if (ids[0] == 0) third_read.wait();
                             if (ids[0] == 4) third_read.count_down();
                           }},
                    in_order(6, 2), {.workers = 2});
  std::vector<Ids> read;
  for (const Ids& batch : loader) read.push_back(batch);
  EXPECT_EQ(read, (std::vector<Ids>{{0, 1}, {2, 3}, {4, 5}}));
}

TEST(DataLoader, ReadsAtMostItsWindowAhead) {
  std::atomic<int> started = 0;
  std::latch window_full(4);
  DataLoader loader(Hooked{100,
                           [&](std::span<const std::int64_t>) {
                             if (++started <= 4) window_full.count_down();
                           }},
                    in_order(100, 1), {.workers = 2, .prefetch = 2});
  int consumed = 0;
  for (auto it = loader.begin(); it != loader.end(); ++it) {
    ++consumed;
    EXPECT_LE(started.load(), consumed + 4);
    if (consumed == 1) window_full.wait();  // it does read ahead
  }
  EXPECT_EQ(consumed, 100);
}

TEST(DataLoader, StopsCleanlyInTheMiddleOfAnEpochAndStartsAnew) {
  DataLoader loader(BySample(Tens{1000}), in_order(1000, 1), {.workers = 3});
  for (int round = 0; round < 20; ++round) {
    std::int64_t next = 0;
    for (const auto& batch : loader) {
      ASSERT_EQ(batch.ids, Ids{next});
      if (++next == round) break;
    }
    loader.set_epoch(round);
  }
}

TEST(DataLoader, AWorkersErrorReachesTheConsumerAtItsBatchWithSampleIds) {
  for (const int workers : {0, 1, 4}) {
    DataLoader loader(Hooked{12,
                             [](std::span<const std::int64_t> ids) {
                               if (ids[0] == 6) throw CorruptData("line 6 is not a number");
                             }},
                      in_order(12, 3), {.workers = workers});
    auto it = loader.begin();
    EXPECT_EQ(*it, (Ids{0, 1, 2}));
    ++it;
    EXPECT_EQ(*it, (Ids{3, 4, 5}));
    EXPECT_EQ(error_of<CorruptData>([&] { ++it; }),
              "data: reading batch 2 of epoch 0 (samples 6, 7, 8) failed: line 6 is not a number");
    // The consumer may go on: the batch is lost, the order is not.
    ++it;
    EXPECT_EQ(*it, (Ids{9, 10, 11}));
  }
}

TEST(DataLoader, KeepsTheOriginalErrorNested) {
  DataLoader loader(Hooked{40, [](std::span<const std::int64_t>) { throw std::out_of_range("no such row"); }},
                    in_order(40, 20), {.workers = 1});
  try {
    loader.begin();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    expect_text(error.what(), {"(samples 0, 1, 2, 3, 4, 5, 6, 7, ... (20 in all)) failed: no such row"});
    EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
  }
}

TEST(DataLoader, AReaderThatHangsIsATimeoutThatNamesTheBatch) {
  std::latch released(1);
  DataLoader loader(Hooked{2,
                           [&](std::span<const std::int64_t> ids) {
                             if (ids[0] == 1) released.wait();
                           }},
                    in_order(2, 1), {.workers = 1, .timeout = std::chrono::milliseconds(20)});
  auto it = loader.begin();
  const std::string text = error_of<Timeout>([&] { ++it; });
  expect_text(text, {"batch 1 of 2 was not read in time"});
  released.count_down();
}

// The program is on its way out with the Timeout, which must not wait for the reader; it may run on for hours, in a
// file system that hangs.
TEST(DataLoader, AReaderThatHangsIsLeftBehindWithItsDataset) {
  const auto released = std::make_shared<std::latch>(1);
  auto owned = std::make_shared<int>();
  const std::weak_ptr<int> dataset = owned;
  std::promise<std::string> seen;
  std::thread program([&seen, released, owned = std::move(owned)]() mutable {
    try {
      DataLoader loader(Hooked{4, [released, owned = std::move(owned)](auto) { released->wait(); }}, in_order(4, 1),
                        {.workers = 2, .timeout = std::chrono::milliseconds(20)});
      loader.begin();
      seen.set_value("no timeout");
    } catch (const Timeout& error) {
      seen.set_value(error.what());
    }
  });
  auto text = seen.get_future();
  const bool is_told = text.wait_for(kPatience) == std::future_status::ready;
  EXPECT_TRUE(is_told) << "the program waits for the reader";
  if (is_told) expect_text(text.get(), {"batch 0 of 4 was not read in time"});
  EXPECT_FALSE(dataset.expired()) << "the readers use it";
  released->count_down();
  program.join();
  EXPECT_TRUE(wait_until([&] { return dataset.expired(); })) << "the last reader lets go of it";
}

TEST(DataLoader, WorkersTakeNoSignalOfTheProgram) {
  std::atomic<int> taking = 0;
  DataLoader loader(Hooked{4,
                           [&](std::span<const std::int64_t>) {
                             sigset_t mask;
                             pthread_sigmask(SIG_SETMASK, nullptr, &mask);
                             if (sigismember(&mask, SIGTERM) == 0) ++taking;
                           }},
                    in_order(4, 1), {.workers = 2});
  for (const auto& batch : loader) static_cast<void>(batch);
  EXPECT_EQ(taking, 0);
}

TEST(DataLoader, RefusesASecondPassAndAnotherEpochInTheMiddleOfOne) {
  DataLoader loader(BySample(Tens{4}), in_order(4, 1));
  const auto it = loader.begin();
  EXPECT_THROW(loader.set_epoch(1), InvalidArgument);
  EXPECT_THROW(loader.begin(), InvalidArgument);
  EXPECT_EQ(loader.epoch(), 0);
}

// Stops in the middle of an epoch at three ranks and goes on at two, with workers, which read ahead of what was handed
// out.
TEST(DataLoader, GoesOnBehindWhatWasHandedOut) {
  const auto loader_of = [](int rank, int world, int workers) {
    return DataLoader(BySample(Tens{40}), GlobalBatchSampler(40, rank, world, {.global_batch = 6, .seed = 4}),
                      {.workers = workers});
  };
  std::vector<Ids> whole;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    auto loader = loader_of(0, 1, 0);
    loader.set_epoch(epoch);
    for (const auto& batch : loader) whole.push_back(batch.ids);
  }
  for (const int workers : {0, 3}) {
    std::vector<Ids> read(whole.size());
    SamplerState place;
    for (int rank = 0; rank < 3; ++rank) {
      auto loader = loader_of(rank, 3, workers);
      std::size_t step = 0;
      for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
        loader.set_epoch(epoch);
        EXPECT_EQ(loader.state(), (SamplerState{.length = 40, .seed = 4, .order = kShuffled, .epoch = epoch}));
        for (const auto& batch : loader) {
          read[step].insert(read[step].end(), batch.ids.begin(), batch.ids.end());
          if (++step == 9) break;
        }
      }
      EXPECT_TRUE(rank == 0 || loader.state() == place) << "the same on every rank";
      place = loader.state();
    }
    EXPECT_EQ(place, (SamplerState{.length = 40, .seed = 4, .order = kShuffled, .epoch = 1, .consumed = 12}));
    for (int rank = 0; rank < 2; ++rank) {
      auto loader = loader_of(rank, 2, workers);
      loader.resume(place);
      EXPECT_EQ(loader.num_batches(), 7) << "of a whole epoch, for a schedule";
      EXPECT_EQ(loader.batches_in_pass(), 5);
      std::size_t step = 9;
      for (std::int64_t epoch = loader.epoch(); epoch < 3; ++epoch) {
        loader.set_epoch(epoch);
        for (const auto& batch : loader) {
          read.at(step).insert(read.at(step).end(), batch.ids.begin(), batch.ids.end());
          ++step;
        }
        EXPECT_EQ(loader.state().consumed, 40);
      }
      EXPECT_EQ(step, read.size());
    }
    EXPECT_EQ(read, whole) << workers << " workers";
  }
}

TEST(DataLoader, HasNothingLeftOfAnEpochThatWasOver) {
  DataLoader loader(BySample(Tens{10}), in_order(10, 5));
  loader.set_epoch(3);
  for (const auto& batch : loader) static_cast<void>(batch);
  const SamplerState over = loader.state();
  DataLoader other(BySample(Tens{10}), in_order(10, 5));
  other.resume(over);
  EXPECT_EQ(other.epoch(), 3);
  other.set_epoch(3);
  EXPECT_TRUE(other.begin() == other.end());
  EXPECT_EQ(other.state(), over);
  EXPECT_FALSE(other.begin() == other.end()) << "the place counts once";
  other.resume({.length = 10, .order = over.order, .epoch = 4, .consumed = 5});
  EXPECT_EQ(other.begin()->ids, (Ids{5, 6, 7, 8, 9}));
  other.resume({.length = 10, .order = over.order, .epoch = 4, .consumed = 5});
  other.set_epoch(5);
  EXPECT_EQ(other.begin()->ids, (Ids{0, 1, 2, 3, 4})) << "of another epoch";
  const auto it = other.begin();
  EXPECT_THROW(other.resume(over), InvalidArgument) << "in the middle of a pass";
}

// As torch's loop does: who forgets set_epoch() gets other batches in each epoch.
TEST(DataLoader, StartsTheNextEpochWithEachLoop) {
  const auto make = [] {
    return DataLoader(BySample(Tens{40}), GlobalBatchSampler(40, 0, 1, {.global_batch = 6, .seed = 4}));
  };
  auto loader = make(), named = make();
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<Ids> read, wanted;
    for (const auto& batch : loader) read.push_back(batch.ids);
    named.set_epoch(epoch);
    for (const auto& batch : named) wanted.push_back(batch.ids);
    EXPECT_EQ(read, wanted) << epoch;
    EXPECT_EQ(loader.epoch(), epoch);
  }
  for (const auto& batch : loader) {  // left early
    EXPECT_FALSE(batch.ids.empty());
    break;
  }
  EXPECT_EQ(loader.epoch(), 4);
  loader.resume(loader.state());
  std::size_t left = 0;
  for (const auto& batch : loader) left += batch.ids.size();
  EXPECT_EQ(left, 34u) << "the rest of epoch 4";
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
  DataLoader loader(BySample(Tens{10}), Group(), {.global_batch = 4, .shuffle = false, .workers = 1});
  std::vector<Ids> read;
  for (const auto& batch : loader) read.push_back(batch.ids);
  EXPECT_EQ(read, (std::vector<Ids>{{2, 3}, {6, 7}, {9}}));
  EXPECT_EQ(loader.sampler().global_batch(), 4);
  EXPECT_EQ(
      testing::error_of<InvalidArgument>([] { DataLoader(BySample(Tens{10}), Group(), {}); }),
      "GlobalBatchSampler: global_batch is 0; give the number of rows in a batch of all ranks together, at least 1");
}

TEST(DataLoader, ReadsAheadNoMoreThanThereIs) {
  DataLoader loader(BySample(Tens{3}), in_order(3, 1), {.workers = 1, .prefetch = std::numeric_limits<int>::max()});
  int batches = 0;
  for (const auto& batch : loader) batches += batch.ids.empty() ? 0 : 1;
  EXPECT_EQ(batches, 3);
}

TEST(DataLoader, RefusesBadOptions) {
  const auto make = [](const LoaderOptions& options) { DataLoader loader(BySample(Tens{4}), in_order(4, 2), options); };
  EXPECT_THROW(make({.workers = -1}), InvalidArgument);
  EXPECT_THROW(make({.prefetch = 0}), InvalidArgument);
}

TEST(DataLoader, AnEmptyDatasetHasNoBatches) {
  DataLoader loader(BySample(Tens{0}), in_order(0, 3), {.workers = 2});
  EXPECT_EQ(loader.num_batches(), 0);
  EXPECT_TRUE(loader.begin() == loader.end());
}

}  // namespace
}  // namespace lockstep::data::data_loader_test
