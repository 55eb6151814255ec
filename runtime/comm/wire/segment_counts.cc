// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/segment_counts.h"

#include <algorithm>
#include <new>
#include <utility>

namespace lockstep::wire {

std::size_t SegmentCounts::bytes_for(const Hosts& hosts) { return hosts.neighbours().size() * sizeof(Words); }

void SegmentCounts::format(std::byte* memory, const Hosts& hosts) {
  new (memory + hosts.local * sizeof(Words)) Words{};
}

SegmentCounts::SegmentCounts(std::byte* memory, const Hosts& hosts, std::vector<DoorbellButton> bells)
    : words_(reinterpret_cast<Words*>(memory)),
      ranks_(hosts.neighbours().size()),
      rails_(hosts.rails),
      local_(hosts.local),
      bells_(std::move(bells)) {}

bool SegmentCounts::have_reached(Count count, std::size_t places, std::uint64_t number) const {
  return std::all_of(words_, words_ + places,
                     [&](const Words& words) { return (words.*count).load(std::memory_order_seq_cst) >= number; });
}

void SegmentCounts::reach(Count count, std::size_t places, std::uint64_t number) {
  (words_[local_].*count).store(number, std::memory_order_seq_cst);
  if (!have_reached(count, places, number)) return;
  for (std::size_t i = 0; i < bells_.size(); ++i) {
    if (i != local_) bells_[i].ring();
  }
}

void SegmentCounts::fill(std::uint64_t number) { reach(&Words::filled, ranks_, number); }

void SegmentCounts::finish(std::uint64_t number) { reach(&Words::finished, rails_, number); }

std::vector<std::size_t> SegmentCounts::awaited(std::uint64_t number, bool in_windows) const {
  const auto behind = [&](Count count, std::size_t places) {
    std::vector<std::size_t> result;
    for (std::size_t i = 0; i < places; ++i) {
      if (i != local_ && (words_[i].*count).load(std::memory_order_seq_cst) < number) result.push_back(i);
    }
    return result;
  };
  const auto filling = in_windows ? behind(&Words::filled, ranks_) : std::vector<std::size_t>();
  return filling.empty() ? behind(&Words::finished, rails_) : filling;
}

}  // namespace lockstep::wire
