// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/rank_set.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/environment.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {
namespace {

std::optional<int> rank_of(std::string_view text) {
  const auto rank = parse_int(text);
  if (!rank || *rank < 0 || *rank > std::numeric_limits<int>::max()) return std::nullopt;
  return static_cast<int>(*rank);
}

}  // namespace

std::optional<RankSet> RankSet::parse(std::string_view text) {
  RankSet set;
  set.text_ = text;
  for (const std::string_view item : split(text, ',')) {
    const auto dash = item.find('-');
    const auto first = rank_of(item.substr(0, dash));
    const auto last = dash == item.npos ? first : rank_of(item.substr(dash + 1));
    if (!first || !last || *last < *first) return std::nullopt;
    set.ranges_.emplace_back(*first, *last);
  }
  if (set.ranges_.empty()) return std::nullopt;
  return set;
}

bool RankSet::contains(int rank) const {
  return is_all() || std::any_of(ranges_.begin(), ranges_.end(),
                                 [rank](const auto& range) { return range.first <= rank && rank <= range.second; });
}

bool RankSet::fits(int ranks) const {
  return std::all_of(ranges_.begin(), ranges_.end(), [ranks](const auto& range) { return range.second < ranks; });
}

}  // namespace lockstep::launcher
