// SPDX-License-Identifier: Apache-2.0
// A rank's trace as words that outlive it: events, and scalars.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/trace/scalar_table.h"
#include "runtime/trace/trace_ring.h"
#include "tests/support/child.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::trace::trace_ring_test {
namespace {

const TraceIdentity kRank{.rank = 3, .world_size = 8, .pid = 4711, .host = "n1", .run_id = "run-1"};

// All seven words follow from the first, so that a mixed event is seen.
TraceRing::Words event(std::uint64_t value) {
  TraceRing::Words words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = value * 1'000'003 + i;
  return words;
}

bool is_whole(const TraceRing::Words& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != words[0] + i) return false;
  }
  return true;
}

TEST(TraceRing, HasTheLastEventsInOrderAndCountsTheOthers) {
  for (const std::uint64_t count : {0, 5, 8, 9, 21}) {
    TraceRing ring("", kRank, 8);
    for (std::uint64_t i = 0; i < count; ++i) ring.put(event(i));
    const auto contents = ring.read();
    EXPECT_EQ(contents.lost, count < 8 ? 0 : count - 8);
    std::vector<TraceRing::Words> wanted;
    for (std::uint64_t i = contents.lost; i < count; ++i) wanted.push_back(event(i));
    EXPECT_EQ(contents.events, wanted);
  }
}

// And the first findings, however many events come.
TEST(TraceRing, HasFindingsScalarsStepsAndIdentityBesideItsEvents) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "rank3.trace";
  TraceIdentity identity = kRank;
  identity.command = "./train --lr 0.1";
  TraceRing ring(path, identity, 8);
  const std::int64_t before = std::chrono::steady_clock::now().time_since_epoch().count();
  EXPECT_TRUE(ring.scalars().put("val/loss", {7, 0.5, 9}));
  ring.set_steps_before(500);
  for (const std::int64_t bytes : {12, 4096, 0}) ring.raise_held(Held::gradients, bytes);
  ring.raise_held(Held::optimizer_state, 12);
  std::vector<TraceRing::Words> findings;
  for (std::uint64_t i = 0; i < 2 * TraceRing::kMostFindings; ++i) {
    ring.put_finding(event(1000 + i));
    if (i < TraceRing::kMostFindings) findings.push_back(event(1000 + i));
    for (std::uint64_t k = 0; k < 20; ++k) ring.put(event(k));
  }
  for (const auto& contents : {ring.read(), TraceRing::read_file(path)}) {
    EXPECT_EQ(contents.findings, findings);
    EXPECT_EQ(contents.identity.rank, 3);
    EXPECT_EQ(contents.identity.world_size, 8);
    EXPECT_EQ(contents.identity.pid, 4711);
    EXPECT_EQ(contents.identity.host, "n1");
    EXPECT_EQ(contents.identity.run_id, "run-1");
    EXPECT_EQ(contents.identity.command, "./train --lr 0.1");
    EXPECT_EQ(contents.steps_before, 500);
    EXPECT_EQ(contents.held, (HeldBytes{0, 4096, 12}));
    EXPECT_GT(contents.began, 0);
    EXPECT_LE(contents.began, before);
    EXPECT_EQ(contents.scalars, (std::vector<ScalarSeries>{{"val/loss", {{7, 0.5, 9}}}}));
    EXPECT_EQ(contents.events.size(), 8u);
  }
}

TEST(TraceRing, InMemoryItIsFoundByItsProcess) {
  const std::string path = [] {
    TraceRing ring("", kRank, 8);
    ring.put(event(1));
    const std::string found = trace_in_memory_of(getpid());
    const auto contents = TraceRing::read_file(found);
    EXPECT_EQ(contents.identity.rank, kRank.rank);
    EXPECT_EQ(contents.events, std::vector<TraceRing::Words>{event(1)});
    return found;
  }();
  EXPECT_EQ(trace_in_memory_of(getpid()), "") << path;
  EXPECT_EQ(trace_in_memory_of(-1), "");
}

TEST(TraceRing, WhereFilesMayNotBeSoLargeNobodyElseSeesItAndAFileIsRefused) {
  const testing::TemporaryFolder folder;
  testing::Child child([&](const testing::Line&) {
    const rlimit small{64, 64};
    if (setrlimit(RLIMIT_FSIZE, &small) != 0) return 2;
    TraceRing ring("", kRank, 8);
    ring.put(event(1));
    if (ring.read().events.size() != 1 || !trace_in_memory_of(getpid()).empty()) return 3;
    try {
      const TraceRing file(folder / "rank3.trace", kRank, 8);
      return 4;
    } catch (const SystemError& error) {
      return error.error_number() == EFBIG ? 0 : 5;
    }
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(TraceRing, AFileIsReadAfterwardsAndANewOneLeavesItsReaderAlone) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "rank3.trace";
  auto ring = std::make_unique<TraceRing>(path, kRank, 8);
  ring->put(event(1));
  TraceRing after(path, kRank, 16);
  EXPECT_TRUE(TraceRing::read_file(path).events.empty());
  EXPECT_EQ(ring->read().events, std::vector<TraceRing::Words>{event(1)});
  ring = std::make_unique<TraceRing>(path, kRank, 8);
  ring->put(event(2));
  ring.reset();
  EXPECT_EQ(TraceRing::read_file(path).events, std::vector<TraceRing::Words>{event(2)});
}

TEST(TraceRing, TextsThatAreTooLongAreCut) {
  TraceRing ring("", {.host = std::string(2000, 'h')}, 8);
  EXPECT_EQ(ring.read().identity.host, std::string(511, 'h'));
}

TEST(TraceRing, WhatIsNoTraceIsSaid) {
  const testing::TemporaryFolder folder;
  EXPECT_THROW(TraceRing::read_file(folder / "none"), SystemError);
  EXPECT_THROW(TraceRing::read_file(folder.write("short", "LOCKTRC1")), CorruptData);
  EXPECT_THROW(TraceRing::read_file(folder.write("other", std::string(16384, 'x'))), CorruptData);
  const std::string path = folder / "cut";
  TraceRing ring(path, kRank, 8);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 64);
  EXPECT_THROW(TraceRing::read_file(path), CorruptData);
  testing::expect_text(testing::error_of<SystemError>([&] { TraceRing(folder / "no-folder" / "x", kRank, 8); }),
                       {"no-folder/x"});
}

// Whoever adds the numbers of a file need not fear an overflow.
TEST(TraceRing, ADamagedHeaderIsSaid) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "rank3.trace";
  const TraceRing ring(path, kRank, 8);
  EXPECT_EQ(TraceRing::read_file(path).identity.rank, 3);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  for (const int word : {2, 3, 4, 8, 9}) {
    for (const std::int64_t number :
         {std::numeric_limits<std::int64_t>::min(), (std::int64_t{1} << 61) - 1 + (1 << 30)}) {
      std::int64_t before = 0;
      file.seekg(8 * word).read(reinterpret_cast<char*>(&before), 8);
      file.seekp(8 * word).write(reinterpret_cast<const char*>(&number), 8).flush();
      if (word != 3 || number > 0) {
        testing::expect_text(testing::error_of<CorruptData>([&] { TraceRing::read_file(path); }),
                             {"rank3.trace is damaged: "});
      }
      file.seekp(8 * word).write(reinterpret_cast<const char*>(&before), 8).flush();
    }
  }
  EXPECT_EQ(TraceRing::read_file(path).identity.rank, 3);
}

// One writer goes round and round; a reader sees whole events only, in their order.
TEST(TraceRing, AReaderSeesWholeEventsWhileTheyAreReplaced) {
  TraceRing ring("", kRank, 16);
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    for (std::uint64_t i = 0; i < 200'000; ++i) ring.put(event(i));
    is_over.store(true);
  });
  std::size_t seen = 0;
  bool last_round = false;
  do {
    last_round = is_over.load();
    const auto contents = ring.read();
    for (std::size_t i = 0; i < contents.events.size(); ++i) {
      ASSERT_TRUE(is_whole(contents.events[i]));
      if (i > 0) {
        ASSERT_LT(contents.events[i - 1][0], contents.events[i][0]);
      }
    }
    seen += contents.events.size();
  } while (!last_round);
  writer.join();
  EXPECT_GE(seen, 16u) << "the last round has a full ring";
}

TEST(TraceRing, SeveralThreadsPutWithoutLosingAny) {
  constexpr std::uint64_t kEach = 4000;
  TraceRing ring("", kRank, 16384);
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&ring, t] {
      for (std::uint64_t i = 0; i < kEach; ++i) ring.put(event(t * kEach + i));
    });
  }
  for (const auto& words : ring.read().events) EXPECT_TRUE(is_whole(words));
  for (std::thread& thread : threads) thread.join();
  const auto contents = ring.read();
  EXPECT_EQ(contents.lost, 0u);
  ASSERT_EQ(contents.events.size(), 4 * kEach);
  std::vector<char> seen(4 * kEach, 0);
  for (const auto& words : contents.events) seen[words[0] / 1'000'003] = 1;
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<std::ptrdiff_t>(4 * kEach));
}

// The words that a trace's file has for it.
class ScalarTableTest : public ::testing::Test {
 protected:
  bool log(const std::string& name, std::int64_t step, double value) {
    return table_.put(name, {.step = step, .value = value, .time = 10 * ++now_});
  }
  std::vector<ScalarPoint> points(const std::string& name) const {
    for (const ScalarSeries& series : ScalarTable::read(words_.get())) {
      if (series.name == name) return series.points;
    }
    return {};
  }

  std::int64_t now_ = 0;
  std::unique_ptr<Word[]> words_ = std::make_unique<Word[]>(ScalarTable::kWords);
  ScalarTable table_{words_.get()};
};

TEST_F(ScalarTableTest, HasWhatWasLoggedByName) {
  EXPECT_TRUE(ScalarTable::read(words_.get()).empty());
  EXPECT_TRUE(log("val/loss", 3, 0.5));
  EXPECT_TRUE(log("lr", 3, 0.1));
  EXPECT_TRUE(log("val/loss", 6, INFINITY));
  const auto all = ScalarTable::read(words_.get());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0], (ScalarSeries{"val/loss", {{3, 0.5, 10}, {6, INFINITY, 30}}}));
  EXPECT_EQ(all[1], (ScalarSeries{"lr", {{3, 0.1, 20}}}));
  const auto newest = table_.newest();
  ASSERT_EQ(newest.size(), 2u);
  EXPECT_EQ(newest[0], (Scalar{"val/loss", 6, INFINITY})) << "the newest first";
  EXPECT_EQ(newest[1].name, "lr");
}

TEST_F(ScalarTableTest, AStepThatIsLoggedAgainKeepsItsLastValue) {
  log("x", 1, 1);
  log("x", 1, 2);
  log("x", 2, 3);
  log("x", 2, 4);
  log("x", 1, 5);  // not at once: the reader has both
  EXPECT_EQ(points("x"), (std::vector<ScalarPoint>{{1, 2, 20}, {2, 4, 40}, {1, 5, 50}}));
}

// Half of the points are dropped whenever there is no room, and the newest one is there always.
TEST_F(ScalarTableTest, ALongRunHasEvenlySpacedPointsAndTheNewestOne) {
  std::int64_t stride = 1;
  for (std::int64_t step = 0; step < 10'000; ++step) {
    ASSERT_TRUE(log("x", step, static_cast<double>(step)));
    if (step == static_cast<std::int64_t>(ScalarTable::kMostPoints) * stride) stride *= 2;
    if (step % 97 != 0 && step < 9'990) continue;
    const auto kept = points("x");
    ASSERT_LE(kept.size(), ScalarTable::kMostPoints);
    if (step > 1'000) {
      ASSERT_GE(kept.size(), ScalarTable::kMostPoints / 2);
    }
    for (std::size_t i = 0; i + 1 < kept.size(); ++i) {
      ASSERT_EQ((kept[i].step + 1) % stride, 0) << step;
      ASSERT_EQ(kept[i].value, static_cast<double>(kept[i].step));
      ASSERT_LT(kept[i].step, kept[i + 1].step);
    }
    ASSERT_EQ(kept.back().step, step);
    ASSERT_EQ(table_.newest().front().step, step);
  }
}

// The same when each step is logged twice, as the loss of a device is until a newer one is known.
TEST_F(ScalarTableTest, StepsThatAreLoggedTwiceCountOnce) {
  for (std::int64_t step = 0; step < 2'000; ++step) {
    log("once", step, 1);
    log("twice", step, 0);
    log("twice", step, 1);
  }
  auto once = points("once"), twice = points("twice");
  for (auto* const series : {&once, &twice}) {
    for (ScalarPoint& point : *series) point.time = 0;
  }
  EXPECT_EQ(once, twice);
}

// A rank that did not log for a while keeps the same steps as the others, apart from the one before the gap.
TEST_F(ScalarTableTest, RanksKeepTheSameStepsAlthoughOneHasAGap) {
  for (std::int64_t step = 0; step < 4'999; ++step) {
    log("whole", step, 1);
    if (step < 600 || step > 740) log("gap", step, 1);
    if (step % 3 == 0) log("third", step, 1);
  }
  std::set<std::int64_t> whole;
  for (const ScalarPoint& point : points("whole")) whole.insert(point.step);
  std::vector<std::int64_t> alone;
  for (const ScalarPoint& point : points("gap")) {
    if (!whole.contains(point.step)) alone.push_back(point.step);
  }
  EXPECT_EQ(alone, std::vector<std::int64_t>{599});
  EXPECT_GE(points("third").size(), ScalarTable::kMostPoints / 2);
}

// Steps that are far apart, and those that come again, end in few points at worst.
TEST_F(ScalarTableTest, AnyStepsHaveRoom) {
  constexpr std::int64_t kLast = std::int64_t{1} << 53;
  for (std::int64_t i = 0; i < 2'000; ++i) {
    log("far", i << 40, 1);
    log("in turns", i % 2 == 0 ? 3 : kLast, static_cast<double>(i));
    log("negative", i % 2 == 0 ? -kLast : kLast, 1);
  }
  EXPECT_EQ(points("far").size(), 500u);
  EXPECT_EQ(points("in turns").back().value, 1'999);
  EXPECT_EQ(points("in turns").back().step, kLast);
  EXPECT_FALSE(points("negative").empty());
}

TEST_F(ScalarTableTest, PointsOutsideOfAllTimesAreNotRead) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t step : {std::int64_t{-1}, std::int64_t{7}, kMost}) table_.put("x", {step, 1, 1});
  table_.put("x", {8, 1, -1});
  table_.put("x", {9, 1, kMost});
  EXPECT_EQ(points("x"), (std::vector<ScalarPoint>{{7, 1, 1}}));
}

TEST_F(ScalarTableTest, NamesBeyondTheMostAreRefused) {
  const std::string longest(ScalarTable::kMostNameBytes, 'n');
  EXPECT_TRUE(log(longest, 1, 1));
  for (std::size_t i = 1; i < ScalarTable::kMostNames; ++i) EXPECT_TRUE(log("name" + std::to_string(i), 1, 1));
  EXPECT_EQ(points(longest).size(), 1u) << "it is whole";
  EXPECT_FALSE(log("one more", 1, 1));
  EXPECT_TRUE(log("name63", 2, 1));
  EXPECT_EQ(ScalarTable::read(words_.get()).size(), ScalarTable::kMostNames);
  EXPECT_EQ(table_.newest().front().name, "name63");
}

TEST(MeanOfScalars, DoesNotDependOnTheirOrder) {
  const auto mean_of = [](const std::vector<double>& values) {
    double mean = 0;
    for (int count = 0; const double value : values) add_to_mean(mean, value, ++count);
    return mean;
  };
  constexpr double kMost = std::numeric_limits<double>::max();
  EXPECT_EQ(mean_of({1, 2, 6}), 3);
  EXPECT_EQ(mean_of({0.1, 0.1, 0.1}), 0.1);
  EXPECT_EQ(mean_of({INFINITY, 1, 2}), INFINITY);
  EXPECT_EQ(mean_of({1, INFINITY, 2}), INFINITY);
  EXPECT_EQ(mean_of({1, 2, -INFINITY}), -INFINITY);
  EXPECT_EQ(mean_of({kMost, -kMost}), 0);
  EXPECT_DOUBLE_EQ(mean_of({-kMost, -kMost, kMost}), -kMost / 3);
  for (const auto& values : std::vector<std::vector<double>>{{INFINITY, 1, -INFINITY}, {NAN, 1}, {1, INFINITY, NAN}}) {
    EXPECT_TRUE(std::isnan(mean_of(values)));
  }
}

// A process was killed while it moved points to the front.
TEST_F(ScalarTableTest, OfASeriesThatIsLeftHalfWrittenTheReaderHasThePointsInOrder) {
  for (std::int64_t step = 0; step < 8; ++step) log("x", step, 1);
  log("y", 1, 1);
  constexpr std::size_t kFirstPoint = ScalarTable::kNameWords + 2;
  for (std::size_t i = 0; i < 3; ++i) words_[kFirstPoint + 3 * i].store(2 * i + 1);
  EXPECT_EQ(points("x").size(), 8u) << "as long as nobody writes";
  words_[ScalarTable::kNameWords].fetch_add(1);
  const auto whole = points("x");
  ASSERT_EQ(whole.size(), 3u);
  EXPECT_EQ(whole.back().step, 5);
  EXPECT_EQ(points("y").size(), 1u);
}

// Another process reads while points are dropped: it sees points that were logged, in their order.
TEST_F(ScalarTableTest, AReaderSeesWholePointsMeanwhile) {
  std::thread writer([this] {
    for (std::int64_t step = 1; step <= 100'000; ++step) table_.put("x", {step, static_cast<double>(step), step});
  });
  std::vector<ScalarPoint> seen;
  do {
    seen = points("x");
    for (std::size_t i = 0; i < seen.size(); ++i) {
      ASSERT_EQ(seen[i].value, static_cast<double>(seen[i].step));
      ASSERT_EQ(seen[i].time, seen[i].step);
      if (i > 0) {
        ASSERT_LT(seen[i - 1].step, seen[i].step);
      }
    }
  } while (seen.empty() || seen.back().step < 100'000);
  writer.join();
}

}  // namespace
}  // namespace lockstep::trace::trace_ring_test
