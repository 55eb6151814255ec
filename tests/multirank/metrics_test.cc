// SPDX-License-Identifier: Apache-2.0
#include "lockstep/metrics/metrics.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/comm/values.h"
#include "lockstep/ddp/on_rank0.h"
#include "lockstep/metrics/stop.h"
#include "runtime/comm/coordinated_stop.h"
#include "runtime/comm/group_internals.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing::metrics_test {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// Collectives that `call` starts.
template <typename Call>
std::int64_t collectives_of(const Group& group, Call call) {
  const std::int64_t before = group->internals().last_sequence();
  call();
  return group->internals().last_sequence() - before;
}

TEST(Values, OfRootReachAll) {
  struct Shape {
    std::int16_t rows = 0;
    double scale = 0;
  };
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [](const Group& group) {
      const int root = group->size() - 1, rank = group->rank();
      EXPECT_EQ(broadcast_value(10 + rank, *group, root), 10 + root);
      EXPECT_EQ(broadcast_value(rank == root, *group, root), true);
      EXPECT_EQ(broadcast_value(0.5 * rank, *group), 0.0);
      const Shape shape = broadcast_value(Shape{static_cast<std::int16_t>(rank), 2.5 * rank}, *group, root);
      EXPECT_EQ(shape.rows, root);
      EXPECT_EQ(shape.scale, 2.5 * root);
      const std::string text = std::string(static_cast<std::size_t>(100 * rank), 'x');
      EXPECT_EQ(broadcast_value(text, *group, root), std::string(static_cast<std::size_t>(100 * root), 'x'));
      EXPECT_EQ(broadcast_value("run " + std::to_string(rank), *group), "run 0");
      std::vector<float> wanted;
      for (int r = 0; r < group->size(); ++r) wanted.push_back(1.5f * static_cast<float>(r));
      EXPECT_EQ(all_gather_value(1.5f * static_cast<float>(rank), *group), wanted);
      EXPECT_THROW(broadcast_value(1, *group, group->size()), InvalidArgument);
    });
  }
}

TEST(LogScalar, RefusesWhatIsNoNameAndStartsNoCollective) {
  run_ranks(2, [](const Group& group) {
    struct Case {
      const char* what;
      std::string name;
      std::int64_t step = 0;
    };
    for (const Case& c : {Case{"no name", ""}, Case{"a long name", std::string(64, 'n')},
                          Case{"a line's end", "val\nloss"}, Case{"a control character", "val\x1bloss"},
                          Case{"no UTF-8", "val\xffloss"}, Case{"a step before the first", "x", -1}}) {
      expect_message("metrics", c.what, error_of([&] { log_scalar(c.name, 1, *group, c.step); }));
    }
    EXPECT_EQ(collectives_of(group,
                             [&] {
                               for (const double value : {1.0, std::nan(""), -std::numeric_limits<double>::infinity()})
                                 log_scalar("évaluation/loss", value, *group);
                               if (group->rank() == 1) log_scalar(std::string(63, 'n'), 1, *group, 0);
                             }),
              0);
  });
}

TEST(Metrics, AreSumsAndMeansOverAllRanksInOneCollective) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [](const Group& group) {
      const std::int64_t n = group->size(), r = group->rank();
      Metrics metrics(*group);
      metrics.add("accuracy", r + 1, 2 * (r + 1));  // half of them
      metrics.add("loss", 0.25 * static_cast<double>(r), 1);
      metrics.add("loss", 0.5);
      if (n > 1) {
        EXPECT_EQ(collectives_of(group, [&] { metrics.result(); }), 1);
      }
      const MetricResults results = metrics.result();
      ASSERT_EQ(results.all().size(), 2u);
      EXPECT_EQ(results["accuracy"].count, n * (n + 1));
      EXPECT_EQ(results.mean("accuracy"), 0.5);
      EXPECT_EQ(results["loss"].sum, 0.25 * static_cast<double>(n * (n - 1) / 2) + 0.5 * static_cast<double>(n));
      EXPECT_EQ(results["loss"].count, 2 * n);
      EXPECT_EQ(metrics.result("accuracy"), 0.5);
      if (n == 1) {
        EXPECT_EQ(results.str(), "accuracy 0.5, loss 0.25");
      }
      metrics.reset();
      EXPECT_TRUE(metrics.result().all().empty());
    });
  }
}

// 2^53 + 1 is no double.
TEST(Metrics, OfWholeNumbersAreExact) {
  run_ranks(3, [](const Group& group) {
    constexpr std::int64_t kLarge = std::int64_t{1} << 53;
    Metrics metrics(*group);
    metrics.add("whole", group->rank() == 0 ? kLarge : 1, 1);
    metrics.add("minus", group->rank() == 0 ? -kLarge + 1 : 0, 1);
    metrics.add("too large", std::numeric_limits<std::int64_t>::max());
    const MetricResults results = metrics.result();
    EXPECT_EQ(results["whole"].sum, static_cast<double>(kLarge + 2));
    EXPECT_EQ(results["minus"].sum, static_cast<double>(-kLarge + 1));
    EXPECT_EQ(results["too large"].sum, 3 * 0x1p63);
  });
}

TEST(Metrics, RoundTheExactSumOnce) {
  run_ranks(1, [](const Group& group) {
    constexpr double kLeast = std::numeric_limits<double>::denorm_min(), kMost = std::numeric_limits<double>::max();
    const auto sum_of = [&](const std::vector<double>& terms) {
      Metrics metrics(*group);
      for (const double term : terms) metrics.add("sum", term);
      return metrics.result()["sum"].sum;
    };
    EXPECT_EQ(sum_of({1, 0x1p-53}), 1.0) << "a tie goes to the even one";
    EXPECT_EQ(sum_of({1, 0x1p-53, kLeast}), 1 + 0x1p-52) << "above a tie, by the least that there is";
    EXPECT_EQ(sum_of({1, 0x1p-53, -kLeast}), 1.0);
    EXPECT_EQ(sum_of({-1, -0x1p-53, -kLeast}), -1 - 0x1p-52);
    EXPECT_EQ(sum_of({kMost, kMost, -kMost}), kMost) << "what is beyond a double on the way";
    EXPECT_EQ(sum_of({kMost, kMost}), std::numeric_limits<double>::infinity());
    EXPECT_EQ(sum_of({kLeast, kLeast, kLeast}), 3 * kLeast);
    EXPECT_EQ(sum_of({-kLeast, 1, -1}), -kLeast);
    EXPECT_EQ(sum_of({0x1.8p600, -0x1.8p600}), 0.0);
    EXPECT_EQ(sum_of({0x1p32, -1, 0x1p-32}), 0x1p32 - 1 + 0x1p-32);
    EXPECT_EQ(sum_of({}), 0.0);
  });
}

TEST(Metrics, MoreThanCanBeCountedIsRefused) {
  run_ranks(2, [](const Group& group) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    Metrics metrics(*group);
    metrics.add("rows", 1.0, kMost);
    expect_message("metrics", "on a rank", error_of([&] { metrics.add("rows", 1.0, 1); }));
    expect_message("metrics", "on all ranks", error_of([&] { metrics.result(); }));
    metrics.reset();
    metrics.add("rows", 1.0, 2);
    EXPECT_EQ(metrics.result()["rows"].count, 4) << "the group continues";
  });
}

TEST(Metrics, DependNeitherOnOrderNorOnWhoAddedWhat) {
  // Of each size that a double can have; with each of them its negative, but for the first.
  std::vector<double> terms;
  Generator random(7);
  for (int i = 0; i < 2000; ++i) {
    const double term = std::ldexp(double{random.normal()}, static_cast<int>(random.below(2000)) - 1000);
    terms.push_back(term);
    if (i > 0) terms.push_back(-term);
  }
  const double left = terms[0];
  for (const int ranks : {1, 2, 3, 5}) {
    for (std::size_t i = terms.size() - 1; i > 0; --i) std::swap(terms[i], terms[random.below(i + 1)]);
    run_ranks(ranks, [&](const Group& group) {
      Metrics metrics(*group);
      const auto ranks_of_all = static_cast<std::size_t>(group->size());
      for (auto i = static_cast<std::size_t>(group->rank()); i < terms.size(); i += ranks_of_all) {
        metrics.add("sum", terms[i]);
      }
      EXPECT_EQ(metrics.result()["sum"].sum, left);
    });
  }
}

TEST(Metrics, ShowNaNAndInfinityAndWhatNobodyCounted) {
  run_ranks(2, [](const Group& group) {
    Metrics metrics(*group);
    metrics.add("nan", group->rank() == 1 ? std::nan("") : 1.0);
    metrics.add("infinite", group->rank() == 0 ? std::numeric_limits<double>::infinity() : 1.0);
    metrics.add("nothing", 0, 0);
    // A batch without rows: its mean is NaN, times 0.
    metrics.add("loss", group->rank() == 1 ? std::nan("") * 0 : 6.0, group->rank() == 1 ? 0 : 3);
    metrics.add("large", std::uint64_t{1} << 63, 2);
    const MetricResults results = metrics.result();
    EXPECT_EQ(results.mean("loss"), 2.0);
    EXPECT_EQ(results.mean("large"), 0x1p62);
    EXPECT_TRUE(std::isnan(results.mean("nan")));
    EXPECT_EQ(results.mean("infinite"), std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isnan(results.mean("nothing")));
    EXPECT_EQ(results.str(), "infinite inf, large 4.61169e+18, loss 2, nan nan, nothing nan");
  });
}

TEST(Metrics, MoreThanTravelAtOnceAndRanksThatHaveNone) {
  for (const int count : {1, 4, 5, 40}) {
    run_ranks(3, [count](const Group& group) {
      Metrics metrics(*group);
      for (int i = 0; i < count && group->rank() != 1; ++i) metrics.add("metric " + std::to_string(i), i, 2);
      const MetricResults results = metrics.result();
      ASSERT_EQ(results.all().size(), static_cast<std::size_t>(count)) << "rank " << group->rank();
      for (int i = 0; i < count; ++i) {
        EXPECT_EQ(results["metric " + std::to_string(i)].sum, 2.0 * i);
        EXPECT_EQ(results["metric " + std::to_string(i)].count, 4);
      }
    });
  }
}

TEST(Metrics, NamesThatDifferAreAMismatchOnEveryRankAndTheGroupGoesOn) {
  run_ranks(3, [](const Group& group) {
    Metrics metrics(*group);
    if (group->rank() > 0) metrics.add("loss", 1.0);
    if (group->rank() == 1) metrics.add("accuracy", 1);
    if (group->rank() == 2) metrics.add("acuracy", 1);
    expect_message("metrics", "two names", error_of<Mismatch>([&] { metrics.result(); }));
    metrics.reset();
    metrics.add("loss", 1.0);
    EXPECT_EQ(metrics.result("loss"), 1.0);
  });
}

TEST(Metrics, RefuseWhatCannotBeMeant) {
  run_ranks(2, [](const Group& group) {
    Metrics metrics(*group);
    EXPECT_THROW(metrics.add("loss", 1.0, -1), InvalidArgument);
    EXPECT_THROW(metrics.add("", 1.0), InvalidArgument);
    EXPECT_TRUE(std::isnan(metrics.result("loss")))
        << "as after an evaluation that a stop has ended before its first batch";
    metrics.add("loss", 1.0);
    expect_message("metrics", "another name", error_of([&] { metrics.result("lost"); }));
  });
}

TEST(Stop, IsSeenByAllInTheSameCallWhoeverAsked) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [ranks](const Group& group) {
      for (int step = 0; step < 10; ++step) {
        if (step == 4 && group->rank() == ranks - 1) request_stop(*group, "good enough");
        if (step == 4 && group->rank() == ranks - 1) request_stop(*group, "another reason");
        const auto reason = should_stop(*group, StopView::all_ranks);
        ASSERT_EQ(reason.has_value(), step >= 4) << "rank " << group->rank() << ", step " << step;
        if (reason) {
          EXPECT_EQ(*reason, "good enough");
        }
      }
    });
  }
}

TEST(EarlyStop, DecidesAlikeOnRankZerosValues) {
  run_ranks(3, [](const Group& group) {
    const auto stopped_after = [&](const std::vector<double>& values, const EarlyStopOptions& options) {
      EarlyStop stop(*group, options);
      for (std::size_t i = 0; i < values.size(); ++i) {
        // The others' values would never stop, or at once.
        const double own = group->rank() == 0 ? values[i] : group->rank() == 1 ? -static_cast<double>(i) : 5.0;
        if (stop.step(own)) return i + 1;
      }
      return std::size_t{0};
    };
    EXPECT_EQ(stopped_after({5, 4, 4, 4, 4}, {.patience = 2}), 4u);
    EXPECT_EQ(stopped_after({5, 4, 4, 3.5, 4, 4, 3}, {.patience = 3}), 0u);
    EXPECT_EQ(stopped_after({5, 4.9, 4.8, 4.7}, {.patience = 2, .min_delta = 0.5}), 3u);
    EXPECT_EQ(stopped_after({1, 2, 3, 3, 3}, {.patience = 2, .higher_is_better = true}), 5u);
    EXPECT_EQ(stopped_after({std::nan(""), std::nan("")}, {.patience = 2}), 2u);
    EXPECT_EQ(stopped_after({std::nan(""), 1, std::nan(""), 0.5, 1, 1}, {.patience = 2}), 6u);
  });
}

// A finished program that is started again resumes behind its last step, and evaluates that step once more.
TEST(EarlyStop, CountsAStepsValueOnce) {
  run_ranks(2, [](const Group& group) {
    CoordinatedStop& training = *group->internals().coordinated_stop();
    EarlyStop first(*group, {.patience = 2});
    training.set_steps_before(10);
    EXPECT_FALSE(first.step(1));
    training.set_steps_before(20);
    EXPECT_FALSE(first.step(2));
    EarlyStop second(*group, {.patience = 2});
    second.set_state(first.state());
    EXPECT_FALSE(second.step(2)) << "of step 20 again";
    EXPECT_EQ(second.state().not_better, 1);
    EXPECT_FALSE(second.step(0.5));
    EXPECT_EQ(second.state().best, 0.5);
    training.set_steps_before(30);
    EXPECT_FALSE(second.step(2));
    training.set_steps_before(40);
    EXPECT_TRUE(second.step(2));
    EarlyStop third(*group, {.patience = 2});
    third.set_state(first.state());
    EXPECT_TRUE(third.step(2)) << "which counts on from there";
  });
}

TEST(EarlyStop, RefusesOptionsThatMakeNoSense) {
  run_ranks(1, [](const Group& group) {
    EXPECT_THROW(EarlyStop(*group, {.patience = 0}), InvalidArgument);
    EXPECT_THROW(EarlyStop(*group, {.min_delta = -1}), InvalidArgument);
    EXPECT_THROW(EarlyStop(*group, {.min_delta = std::nan("")}), InvalidArgument);
  });
}

TEST(OnRank0, GivesItsResultToAllAndRunsThereAlone) {
  std::atomic<int> runs = 0;
  run_ranks(3, [&](const Group& group) {
    on_rank0([&] { ++runs; }, *group);
    EXPECT_EQ(runs, 1);
    group->barrier().wait();
    const int rank = group->rank();
    EXPECT_EQ(on_rank0([&] { return 40 + rank; }, *group), 40);
    EXPECT_EQ(on_rank0([&] { return "rank " + std::to_string(rank); }, *group), "rank 0");
    EXPECT_THROW(on_rank0([] { throw InvalidArgument("no such file"); }, *group), Error);
    EXPECT_EQ(on_rank0([] { return 1.5; }, *group), 1.5) << "the group continues";
  });
}

TEST(AllReduceValue, GivesEveryRankTheReductionOfAllNumbers) {
  run_ranks(3, [](const Group& group) {
    const int rank = group->rank();
    EXPECT_EQ(all_reduce_value(rank + 1, *group), 6);
    EXPECT_EQ(all_reduce_value(0.5f * static_cast<float>(rank), *group, ReduceOp::avg), 0.5f);
    EXPECT_EQ(all_reduce_value(std::int64_t{1} << (40 + rank), *group, ReduceOp::max), std::int64_t{1} << 42);
    EXPECT_EQ(all_reduce_value(1.0 + rank, *group, ReduceOp::product), 6.0);
  });
}

}  // namespace
}  // namespace lockstep::testing::metrics_test
