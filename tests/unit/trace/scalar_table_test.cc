// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/scalar_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <thread>

namespace lockstep::trace::scalar_table_test {
namespace {

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
  const auto once = points("once");
  const auto twice = points("twice");
  ASSERT_EQ(once.size(), twice.size());
  for (std::size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(once[i].step, twice[i].step);
    EXPECT_EQ(twice[i].value, 1);
  }
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
  for (std::size_t i = 0; i < ScalarTable::kMostNames; ++i) EXPECT_TRUE(log("name" + std::to_string(i), 1, 1));
  EXPECT_FALSE(log("one more", 1, 1));
  EXPECT_TRUE(log("name63", 2, 1));
  EXPECT_EQ(ScalarTable::read(words_.get()).size(), ScalarTable::kMostNames);
  EXPECT_EQ(table_.newest().front().name, "name63");
}

TEST_F(ScalarTableTest, TheLongestNameIsWhole) {
  const std::string longest(ScalarTable::kMostNameBytes, 'n');
  log(longest, 1, 1);
  EXPECT_EQ(points(longest).size(), 1u);
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
}  // namespace lockstep::trace::scalar_table_test
