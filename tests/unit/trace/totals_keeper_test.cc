// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/totals_keeper.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "runtime/trace/rank_totals.h"
#include "runtime/trace/scalar_table.h"

namespace lockstep::trace::totals_keeper_test {
namespace {

StepRecord step_of(std::int64_t begin, std::int64_t end, std::int64_t waited, std::int64_t hidden) {
  const auto at = [](std::int64_t ns) { return Time(std::chrono::nanoseconds(ns)); };
  StepRecord record;
  record.begin = record.last_gradient_ready = at(begin);
  record.end = at(end);
  record.waited = std::chrono::nanoseconds(waited);
  record.hidden = std::chrono::nanoseconds(hidden);
  return record;
}

TEST(TotalsKeeper, AddsUpWhatWasOverWhenTheLastStepEnded) {
  TotalsKeeper keeper;
  EXPECT_EQ(keeper.totals(0).steps, 0);
  keeper.begin_span(10);
  keeper.end_span(SpanKind::data, 5, 15);
  EXPECT_EQ(keeper.totals(20).of(SpanKind::data), 0) << "of no step that has ended";
  keeper.end_step(step_of(100, 180, 30, 7), false);
  keeper.add_batch(32, 0.5);
  keeper.begin_span(200);
  keeper.begin_span(250);
  keeper.end_span(SpanKind::data, 11, 260);
  keeper.end_step(step_of(300, 400, 20, 3), true);
  keeper.add_batch(16, std::nullopt);
  const RankTotals totals = keeper.totals(500);
  EXPECT_EQ(totals.steps, 2);
  EXPECT_EQ(totals.on_device, 1);
  EXPECT_EQ(totals.until, 400);
  EXPECT_EQ(totals.in_steps, 180);
  EXPECT_EQ(totals.waited, 50);
  EXPECT_EQ(totals.hidden, 10);
  EXPECT_EQ(totals.after_steps, 20) << "from 180 to the first span behind it";
  EXPECT_EQ(totals.rows, 48);
  EXPECT_EQ(totals.loss, 0.5);
  EXPECT_EQ(totals.of(SpanKind::data), 16);
  EXPECT_GT(totals.resident, 1 << 20);
  EXPECT_EQ(totals.snapshot_age, -1);
  keeper.end_span(SpanKind::snapshot, 4, 600);
  EXPECT_EQ(keeper.totals(650).snapshot_age, 50);
  EXPECT_FALSE(totals.finding);
  keeper.add_wrong_step();
  keeper.add_wrong_step();
  keeper.add_finding({.step = 4, .parameter = "a", .time = 7});
  keeper.add_finding({.step = 9, .parameter = "b"});
  keeper.set_equal_in(200);
  EXPECT_EQ(keeper.totals(650).left, -1);
  keeper.set_left(47'000'000'000);
  EXPECT_EQ(keeper.totals(650).left, 47'000'000'000);
  EXPECT_EQ(keeper.totals(650).wrong_steps, 2);
  EXPECT_EQ(keeper.totals(650).equal_in, 200);
  EXPECT_EQ(keeper.totals(650).finding, (Finding{.step = 4, .parameter = "a"})) << "the first";
}

TEST(RankTotals, GoThroughAWord) {
  RankTotals totals{.steps = 3,
                    .until = std::numeric_limits<std::int64_t>::max(),
                    .waited = 5,
                    .after_steps = 6,
                    .rows = 7,
                    .snapshot_age = -1};
  totals.spans[2] = 9;
  for (const std::optional<double> loss : {std::optional<double>(), std::optional(0.1), std::optional(-1e300)}) {
    totals.loss = loss;
    const std::string word = encode(totals);
    EXPECT_EQ(word.find(' '), std::string::npos);
    EXPECT_EQ(decode_rank_totals(word), totals);
    EXPECT_EQ(decode_rank_totals(word + ",of a later version"), totals);
  }
  totals.wrong_steps = 3;
  totals.equal_in = 100;
  totals.left = 47;
  totals.finding = {.kind = FindingKind::infinity, .rank = 2, .step = 12, .parameter = "fc.weight"};
  EXPECT_EQ(decode_rank_totals(encode(totals)), totals);
  totals.finding->parameter = "of my own, with: all";
  const auto read = decode_rank_totals(encode(totals));
  ASSERT_TRUE(read && read->finding);
  EXPECT_EQ(read->finding->parameter, "of_my_own__with:_all");
  totals.finding.reset();
  totals.scalars = {{"val/loss", 500, 0.1}, {"of my own, with: all \xc3\xa9", 1, -INFINITY}, {"lr", 2, 1e-300}};
  EXPECT_EQ(decode_rank_totals(encode(totals)), totals);
  EXPECT_EQ(encode(totals).find(' '), std::string::npos);
  totals.scalars = {{"nan", 1, std::numeric_limits<double>::quiet_NaN()}};
  EXPECT_TRUE(std::isnan(decode_rank_totals(encode(totals))->scalars.at(0).value));
  // The longest that there can be.
  RankTotals longest;
  for (auto& span : longest.spans) span = std::numeric_limits<std::int64_t>::min();
  for (auto* const number : {&longest.steps, &longest.until, &longest.on_device, &longest.in_steps, &longest.waited,
                             &longest.hidden, &longest.after_steps, &longest.rows, &longest.resident,
                             &longest.snapshot_age, &longest.wrong_steps, &longest.equal_in, &longest.left}) {
    *number = std::numeric_limits<std::int64_t>::min();
  }
  longest.held.fill(std::numeric_limits<std::int64_t>::min());
  longest.loss = -std::numeric_limits<double>::denorm_min();
  longest.finding = {.kind = FindingKind::apart,
                     .rank = std::numeric_limits<int>::min(),
                     .step = std::numeric_limits<std::int64_t>::min(),
                     .parameter = std::string(Finding::kMostNameBytes, 'n')};
  for (std::size_t i = 0; i < ScalarTable::kMostNames; ++i) {
    longest.scalars.push_back({std::string(ScalarTable::kMostNameBytes - 2, 'n') + std::to_string(10 + i),
                               std::numeric_limits<std::int64_t>::max(), -std::numeric_limits<double>::denorm_min()});
  }
  EXPECT_EQ(decode_rank_totals(encode(longest)), longest);
}

TEST(RankTotals, WhatIsNoneOfThemIsNotTaken) {
  const std::string word = encode({});
  EXPECT_TRUE(decode_rank_totals(word));
  EXPECT_FALSE(decode_rank_totals(""));
  EXPECT_FALSE(decode_rank_totals(word.substr(2)));
  EXPECT_FALSE(decode_rank_totals(word.substr(0, word.size() - 1)));
  EXPECT_FALSE(decode_rank_totals("x" + word));
  EXPECT_FALSE(decode_rank_totals(word.substr(0, word.size() - 1) + "much"));
  EXPECT_FALSE(decode_rank_totals(word + "," + std::string(kMostTotalsCharacters, '1')));
  for (const std::string& none :
       {std::string(":1:2"), std::string("6c72:1"), std::string("6c72:x:2"), std::string("6c72:1:x"),
        std::string("6c72"), std::string("6c72:-1:2"), std::string("-1:1:2"), std::string("6c7:1:2"),
        std::string("6c7x:1:2"), std::string("0x6c:1:2"), std::string("ff:1:2"), std::string("0a:1:2"),
        std::string("00:1:2"), std::string(128, '6') + ":1:2"}) {
    EXPECT_TRUE(decode_rank_totals(word + "," + none)->scalars.empty()) << none;
  }
  EXPECT_EQ(decode_rank_totals(word + ",6c72:1:2,6c72:3:4")->scalars, (std::vector<Scalar>{{"lr", 1, 2}}));
}

}  // namespace
}  // namespace lockstep::trace::totals_keeper_test
