// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/live_run.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <tuple>
#include <utility>

namespace lockstep::launcher {
namespace {

using membership::MemberState;
using membership::MemberView;
using trace::RankTotals;
using trace::SpanKind;

std::optional<RankTotals> totals_of(const MemberView& member) {
  auto totals = trace::decode_rank_totals(member.position.totals);
  return totals && totals->steps > 0 ? totals : std::nullopt;
}

// Returns the members of the largest scope, by rank.
std::vector<MemberView> members_of_job(const std::vector<MemberView>& members) {
  const auto largest = std::min_element(members.begin(), members.end(), [](const MemberView& a, const MemberView& b) {
    return std::tuple(-a.info.world_size, std::string_view(a.scope)) <
           std::tuple(-b.info.world_size, std::string_view(b.scope));
  });
  std::vector<MemberView> job;
  std::copy_if(members.begin(), members.end(), std::back_inserter(job),
               [&](const MemberView& member) { return member.scope == largest->scope; });
  std::sort(job.begin(), job.end(), [](const MemberView& a, const MemberView& b) { return a.info.rank < b.info.rank; });
  return job;
}

// Returns the mean step of a window, with `window` as its number.
StepRow mean_step(const StepRow& sums, std::int64_t window) {
  StepRow mean = sums;
  mean.number = mean.step = window;
  mean.begin = 0;
  mean.end = sums.length() / sums.number;
  for (auto& part : mean.ns) part /= sums.number;
  return mean;
}

}  // namespace

std::optional<StepRow> steps_between(const RankTotals& before, const RankTotals& after) {
  const std::int64_t steps = after.steps - before.steps;
  if (steps <= 0 || after.until <= before.until) return std::nullopt;
  StepRow row{.number = steps,
              .step = steps,
              .begin = before.until,
              .end = after.until,
              .on_device = after.on_device > before.on_device,
              .weight = after.rows - before.rows,
              .loss = after.loss};
  const auto spent = [&](SpanKind kind) { return after.of(kind) - before.of(kind); };
  row[Phase::data] = spent(SpanKind::data);
  row[Phase::forward] = spent(SpanKind::forward);
  // A step ends within its backward, whose span ends after the step, so for the last step only `in_steps` has the time,
  // and the wait in it. On a device a step's end is that of its stream.
  const std::int64_t in_steps = after.in_steps - before.in_steps;
  const std::int64_t least = row.on_device ? 0 : in_steps;
  // For a program that does not use lockstep's engine, or its optimizer.
  row[Phase::backward] = after.of(SpanKind::backward) > 0 ? std::max(spent(SpanKind::backward), least) : in_steps;
  row[Phase::optimizer] =
      after.of(SpanKind::optimizer) > 0 ? spent(SpanKind::optimizer) : after.after_steps - before.after_steps;
  row[Phase::snapshot] = spent(SpanKind::snapshot);
  row[Phase::evaluation] = spent(SpanKind::evaluation);
  row[Phase::waited] = spent(SpanKind::collective);
  settle(row, after.hidden - before.hidden, after.waited - before.waited);
  return row;
}

bool LiveRun::is_of_same_ranks(const std::vector<MemberView>& members) const {
  return std::equal(members.begin(), members.end(), members_.begin(), members_.end(),
                    [](const MemberView& a, const MemberView& b) {
                      return a.scope == b.scope && a.info.rank == b.info.rank && a.info.process == b.info.process;
                    });
}

void LiveRun::look(const std::vector<MemberView>& members) {
  std::vector<MemberView> job = members_of_job(members);
  if (!is_of_same_ranks(job)) bounds_.clear();
  members_ = std::move(job);
  now_.clear();
  for (const MemberView& member : members_) {
    if (const auto totals = totals_of(member)) now_[member.info.rank] = *totals;
  }
  const bool has_all = !members_.empty() && now_.size() == members_.size() &&
                       now_.size() == static_cast<std::size_t>(members_.front().info.world_size);
  if (!has_all) return bounds_.clear();
  const auto has_moved = [this](const auto& entry) {
    return entry.second.steps > bounds_.back().at(entry.first).steps;
  };
  if (!bounds_.empty() && !std::all_of(now_.begin(), now_.end(), has_moved)) return;
  bounds_.push_back(now_);
  if (bounds_.size() > kWindows + 1) bounds_.pop_front();
}

std::vector<LiveRank> LiveRun::ranks() const {
  std::vector<LiveRank> ranks;
  for (const MemberView& member : members_) {
    LiveRank rank{.member = member};
    if (const auto now = now_.find(member.info.rank); now != now_.end()) {
      rank.totals = now->second;
      if (!bounds_.empty()) rank.recent = steps_between(bounds_.front().at(member.info.rank), now->second);
    }
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

std::optional<Straggler> LiveRun::straggler(double least) const {
  if (bounds_.size() < kWindows + 1) return std::nullopt;
  std::vector<RankTable> tables;
  for (const MemberView& member : members_) {
    if (member.state != MemberState::present) return std::nullopt;
    RankTable table{.rank = member.info.rank, .host = member.info.process.host};
    for (std::size_t i = 1; i < bounds_.size(); ++i) {
      const auto sums = steps_between(bounds_[i - 1].at(table.rank), bounds_[i].at(table.rank));
      if (sums) table.rows.push_back(mean_step(*sums, static_cast<std::int64_t>(i)));
    }
    tables.push_back(std::move(table));
  }
  return find_straggler(tables, least);
}

}  // namespace lockstep::launcher
