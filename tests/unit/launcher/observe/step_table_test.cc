// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/step_table.h"

#include <gtest/gtest.h>

#include "tests/unit/launcher/observe/traces.h"

namespace lockstep::launcher::step_table_test {
namespace {

using testing_traces::Rhythm;
using testing_traces::trace_of;
using trace::SpanKind;

constexpr std::int64_t kLength = 10'000;

void expect_phases(const StepRow& row, const Rhythm& rhythm) {
  EXPECT_EQ(row[Phase::optimizer], rhythm.optimizer);
  EXPECT_EQ(row[Phase::data], rhythm.data);
  EXPECT_EQ(row[Phase::forward], rhythm.forward);
  EXPECT_EQ(row[Phase::backward], rhythm.backward);
  EXPECT_EQ(row[Phase::hidden], rhythm.hidden);
  EXPECT_EQ(row[Phase::other], rhythm.other);
  const std::int64_t own = rhythm.optimizer + rhythm.data + rhythm.forward + rhythm.backward + rhythm.other;
  EXPECT_EQ(row.own(), own);
  EXPECT_EQ(row[Phase::waited], row.length() - own - rhythm.hidden);
}

TEST(StepTable, SaysWhereEachStepsTimeWent) {
  for (const bool has_optimizer : {true, false}) {  // an optimizer of others is what follows the backward
    const RankTable table = table_of(trace_of(1, 5, {}, kLength, 0, has_optimizer));
    EXPECT_EQ(table.rank, 1);
    ASSERT_EQ(table.rows.size(), 4u) << "nothing is known of what was before the first";
    for (const StepRow& row : table.rows) {
      EXPECT_EQ(row.length(), kLength);
      EXPECT_EQ(row.weight, 32);
      expect_phases(row, {});
    }
    EXPECT_EQ(table.rows[2].loss, 0.25);
  }
}

TEST(StepTable, AReducerWithoutAnEngineHasItsStepsAsBackward) {
  auto trace = trace_of(0, 3, {}, kLength);
  trace.spans.clear();
  const RankTable table = table_of(trace);
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[0][Phase::backward], Rhythm{}.backward);
  EXPECT_EQ(table.rows[0][Phase::hidden], Rhythm{}.hidden);
  EXPECT_EQ(table.rows[0].length(), kLength);
}

TEST(StepTable, AWaitWithinAForwardIsNoForward) {
  auto trace = trace_of(0, 3, {}, kLength);
  const auto forward = trace.steps[1].begin - Rhythm{}.forward;
  trace.spans.push_back({.kind = SpanKind::collective, .begin = forward + 100, .end = forward + 800});
  const RankTable table = table_of(trace);
  EXPECT_EQ(table.rows[0][Phase::forward], Rhythm{}.forward - 700);
  EXPECT_EQ(table.rows[0][Phase::waited], table.rows[1][Phase::waited] + 700);
}

TEST(StepTable, SpansOfOtherThreadsAndOfTheProgramTakeNothingAway) {
  auto trace = trace_of(0, 4, {}, kLength);
  const auto begin = trace.steps[1].begin - 1000;
  trace.spans.push_back({.kind = SpanKind::data, .thread = 3, .begin = begin, .end = begin + 900});
  trace.spans.push_back({.kind = SpanKind::program, .begin = begin, .end = begin + 900, .name = "mine"});
  for (const StepRow& row : table_of(trace).rows) expect_phases(row, {});
}

TEST(StepTable, OnADeviceHiddenCommunicationTakesNoTimeOfTheHost) {
  auto trace = trace_of(0, 4, {}, kLength);
  for (auto& step : trace.steps) step.on_device = true;
  for (const StepRow& row : table_of(trace).rows) {
    EXPECT_EQ(row[Phase::backward], Rhythm{}.backward + Rhythm{}.hidden);
    EXPECT_EQ(row.own(), row.length() - row[Phase::waited]);
    EXPECT_EQ(row[Phase::other], Rhythm{}.other);
  }
}

TEST(StepTable, OnADeviceTheHostWaitsWithItsStreamWhereverItIs) {
  StepRow row{.begin = 1000, .end = 2000, .on_device = true};
  row.ns[static_cast<std::size_t>(Phase::forward)] = 60;
  row.ns[static_cast<std::size_t>(Phase::backward)] = 380;
  settle(row, 300, 890);
  EXPECT_EQ(row[Phase::forward], 60);
  EXPECT_EQ(row[Phase::backward], 0);
  EXPECT_EQ(row[Phase::waited], 890);
  EXPECT_EQ(row[Phase::other], 50);
  EXPECT_EQ(row.own(), 110) << "what the rank took for itself";
  EXPECT_EQ(row[Phase::hidden], 110) << "no more than that";

  StepRow ahead{.begin = 0, .end = 1000, .on_device = true};
  ahead.ns[static_cast<std::size_t>(Phase::data)] = 40;
  ahead.ns[static_cast<std::size_t>(Phase::forward)] = 830;
  ahead.ns[static_cast<std::size_t>(Phase::backward)] = 50;
  settle(ahead, 0, 800);
  EXPECT_EQ(ahead[Phase::waited], 800);
  EXPECT_EQ(ahead[Phase::forward], 160);
  EXPECT_EQ(ahead[Phase::data], 40);
  EXPECT_EQ(ahead.own(), 200);
}

std::vector<RankTable> job(const std::vector<Rhythm>& ranks, int steps = 20, std::int64_t clocks_apart = 0) {
  std::vector<RankTable> tables;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    tables.push_back(
        table_of(trace_of(static_cast<int>(i), steps, ranks[i], kLength, static_cast<std::int64_t>(i) * clocks_apart)));
  }
  return tables;
}

TEST(Straggler, IsNamedWithItsCauseWhereverItsTimeGoes) {
  const std::pair<Rhythm, Phase> cases[] = {
      {{.data = 1900}, Phase::data},         {{.forward = 3400}, Phase::forward},
      {{.backward = 5400}, Phase::backward}, {{.optimizer = 2400}, Phase::optimizer},
      {{.other = 1600}, Phase::other},
  };
  for (const auto& [slow, cause] : cases) {
    // Hosts whose clocks are three hours apart, and hosts whose are not.
    for (const std::int64_t apart : {std::int64_t{0}, std::int64_t{10'800'000'000'000}}) {
      const auto found = find_straggler(job({{}, {}, {}, slow}, 20, apart));
      ASSERT_TRUE(found) << name_of(cause);
      EXPECT_EQ(found->rank, 3);
      EXPECT_EQ(found->host, "n1");
      EXPECT_EQ(found->cause, cause) << name_of(found->cause);
      EXPECT_NEAR(found->share, 0.14, 1e-9);
      EXPECT_EQ(found->steps, 19u);
    }
  }
  const auto found = find_straggler(job({{}, {.data = 1900}}));
  ASSERT_TRUE(found);
  EXPECT_EQ(describe(*found), "rank 1 (host n0) costs 14 % of every step: data");
}

// Rank 0 sums for the others, which takes part of its backward: it is slowed, and slows nobody by its own work.
TEST(Straggler, ThatIsSlowInAnotherPhaseOfEachStepHasNoPhaseThatHadNoTime) {
  std::vector<RankTable> tables = job({{}, {}});
  for (std::size_t i = 0; i < tables[1].rows.size(); ++i) {
    StepRow& row = tables[1].rows[i];
    std::int64_t added = 0;
    for (const Phase phase : {Phase::data, Phase::forward, Phase::backward, Phase::optimizer, Phase::other}) {
      const std::int64_t more = static_cast<std::size_t>(phase) % 5 == i % 5 ? 4000 : -50;
      row.ns[static_cast<std::size_t>(phase)] += more;
      added += more;
    }
    row.ns[static_cast<std::size_t>(Phase::waited)] -= added;
  }
  const auto found = find_straggler(tables);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->cause, Phase::other) << name_of(found->cause);
}

TEST(Straggler, IsNobodyWhereTheRanksAreAlikeOrTooLittleIsKnown) {
  EXPECT_FALSE(find_straggler({}));
  EXPECT_FALSE(find_straggler(job({{}, {}, {}})));
  EXPECT_FALSE(find_straggler(job({{.hidden = 2000}, {}}))) << "slowed by others' reductions";
  EXPECT_FALSE(find_straggler(job({{.data = 1900}}))) << "alone it makes nobody wait";
  EXPECT_FALSE(find_straggler(job({{}, {.data = 900}}))) << "4 %";
  EXPECT_FALSE(find_straggler(job({{}, {.data = 1900}}, static_cast<int>(kStragglerSteps))));
  EXPECT_TRUE(find_straggler(job({{}, {.data = 1900}}, static_cast<int>(kStragglerSteps) + 1)));
  auto tables = job({{}, {}});
  tables[1].rows[5].ns[static_cast<std::size_t>(Phase::data)] += 100 * kLength;
  tables[1].rows[5].end += 100 * kLength;
  EXPECT_FALSE(find_straggler(tables)) << "one long pause is no cost of every step";
}

TEST(RowsByStep, AreThoseThatEveryRankHas) {
  auto tables = job({{}, {}}, 10);
  tables[0].rows.erase(tables[0].rows.begin(), tables[0].rows.begin() + 3);
  tables[1].rows.pop_back();
  const auto steps = rows_by_step(tables);
  ASSERT_EQ(steps.size(), 5u);
  for (const auto& rows : steps) EXPECT_EQ(rows[0]->number, rows[1]->number);
  EXPECT_EQ(steps.front()[0]->number, 4);
}

}  // namespace
}  // namespace lockstep::launcher::step_table_test
