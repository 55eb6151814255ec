// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/arrival_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/text.h"

namespace lockstep::wire {
namespace {

std::size_t inline_bytes(const comm::CollectiveArgs& args) {
  return args.count() * args.element_bytes() * comm::source_parts(args.record.kind, args.size);
}

}  // namespace

bool fits_inline(const comm::CollectiveArgs& args) { return inline_bytes(args) <= kInlineBytes; }

Comparison compare(const comm::CollectiveArgs& args, std::uint64_t sequence, const Arrivals& arrivals,
                   const rendezvous::Roster& roster) {
  const auto who = [&](std::size_t rank) { return roster[rank].describe(); };
  Comparison comparison;
  comm::ScalarReduction scalars(args.record.note);
  for (std::size_t r = 0; r < arrivals.size(); ++r) {
    const comm::OpRecord& theirs = arrivals[r]->record;
    if (!comm::same_operation(args.record, theirs)) {
      comparison.mismatch =
          comm::describe_mismatch(sequence, who(static_cast<std::size_t>(args.rank)), args.record, who(r), theirs);
      return comparison;
    }
    scalars.add(theirs.words);
  }
  comparison.words = scalars.words();
  if (scalars.is_too_heavy()) {
    const auto weight_of = [&](const rendezvous::Member& member) {
      const Announcement& theirs = *arrivals[static_cast<std::size_t>(&member - roster.data())];
      return fmt::format("{} of {}", theirs.record.words[0], member.describe());
    };
    comparison.mismatch = comm::describe_too_heavy(args.record, sequence, joined(roster, weight_of));
    return comparison;
  }
  if (!fits_inline(args)) return comparison;
  for (std::size_t r = 0; r < arrivals.size(); ++r) {
    if (!comm::is_source(args.record, static_cast<int>(r)) || arrivals[r]->payload.size() == inline_bytes(args))
      continue;
    comparison.mismatch =
        fmt::format("{}: {} sent less than its record says; run one version of lockstep on every host",
                    comm::describe(args.record, sequence), who(r));
    return comparison;
  }
  return comparison;
}

LastArrival last_of(const Arrivals& arrivals) {
  const auto earlier = [](const auto& a, const auto& b) { return a->at < b->at; };
  const auto [first, last] = std::minmax_element(arrivals.begin(), arrivals.end(), earlier);
  return {static_cast<int>(last - arrivals.begin()), (*last)->at - (*first)->at};
}

void ArrivalTable::note(int rank, Announcement announcement) {
  const auto index = static_cast<std::size_t>(rank);
  const std::uint64_t sequence = ++heard_[index];
  while (arrivals_.size() < sequence - taken_) arrivals_.emplace_back(heard_.size());
  arrivals_[sequence - taken_ - 1][index] = std::move(announcement);
}

std::optional<Arrivals> ArrivalTable::take() {
  if (arrivals_.empty()) return std::nullopt;
  Arrivals& front = arrivals_.front();
  if (!std::all_of(front.begin(), front.end(), [](const auto& arrival) { return arrival.has_value(); })) {
    return std::nullopt;
  }
  std::optional<Arrivals> taken(std::move(front));
  arrivals_.pop_front();
  ++taken_;
  return taken;
}

std::vector<int> ArrivalTable::absent(std::uint64_t sequence) const {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < heard_.size(); ++r) {
    if (heard_[r] < sequence) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

}  // namespace lockstep::wire
