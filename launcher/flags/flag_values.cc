// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/flag_values.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/environment.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {

std::optional<std::chrono::milliseconds> parse_seconds(const std::string& text) {
  try {
    std::size_t used = 0;
    const double value = std::stod(text, &used);
    if (used == text.size() && value >= 0 && value <= 86400) {
      return std::chrono::milliseconds(static_cast<std::int64_t>(value * 1000));
    }
  } catch (const std::exception&) {  // not a number
  }
  return std::nullopt;
}

std::optional<std::chrono::milliseconds> parse_seconds_above_0(const std::string& text) {
  const auto seconds = parse_seconds(text);
  return seconds && seconds->count() > 0 ? seconds : std::nullopt;
}

std::optional<std::size_t> parse_bytes(std::string_view text) {
  constexpr std::string_view kUnits = "KMGT";
  std::size_t scale = 1;
  if (!text.empty()) {
    if (const auto unit = kUnits.find(text.back()); unit != std::string_view::npos) {
      scale = std::size_t{1} << (10 * (unit + 1));
      text.remove_suffix(1);
    }
  }
  const auto number = parse_int(text);
  if (!number || *number < 1) return std::nullopt;
  const auto count = static_cast<std::size_t>(*number);
  if (count > std::numeric_limits<std::size_t>::max() / scale) return std::nullopt;
  return count * scale;
}

std::optional<std::uint16_t> parse_port(std::string_view text) {
  const auto port = parse_count(text, 65535, 0);
  return port ? std::optional(static_cast<std::uint16_t>(*port)) : std::nullopt;
}

std::optional<std::int64_t> parse_count(std::string_view text, std::int64_t most, std::int64_t least) {
  const auto count = parse_int(text);
  return count && *count >= least && *count <= most ? count : std::nullopt;
}

std::string meant(std::string_view word, std::span<const std::string_view> names) {
  const auto found = nearest(word, names);
  return found ? fmt::format("; did you mean {}?", *found) : "";
}

std::optional<Tee> Tee::parse(std::string_view text) {
  if (text.size() != 1 || text.front() < '0' || text.front() > '3') return std::nullopt;
  const int streams = text.front() - '0';
  return Tee{.out = (streams & 1) != 0, .err = (streams & 2) != 0};
}

std::optional<Binding> parse_binding(std::string_view text) {
  if (text == "none") return Binding::none;
  if (text == "core") return Binding::core;
  if (text == "numa") return Binding::numa;
  return std::nullopt;
}

std::optional<std::vector<std::string>> parse_devices(std::string_view text) {
  const auto entries = split(text, ',');
  for (const auto& entry : entries) {
    const auto index = parse_int(entry);
    if (!is_gpu_uuid(entry) && !(index && *index >= 0 && *index < kMaxRanks)) return std::nullopt;
  }
  return std::vector<std::string>(entries.begin(), entries.end());
}

bool is_gpu_uuid(std::string_view entry) {
  // The prefix alone would match any GPU.
  return (entry.starts_with("GPU-") || entry.starts_with("MIG-")) && entry.size() > 4;
}

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
