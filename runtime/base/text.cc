// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/text.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace lockstep {
namespace {

// Letters to add, remove, change, or swap with the next one.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> older(b.size() + 1), old(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    older = std::exchange(old, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({old[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1), old[j] + 1, row[j - 1] + 1});
      const bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swap) row[j] = std::min(row[j], older[j - 2] + 1);
    }
  }
  return row.back();
}

}  // namespace

std::string readable_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  auto value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string_view take_word(std::string_view& rest, char separator) {
  const std::string_view word = rest.substr(0, rest.find(separator));
  rest.remove_prefix(std::min(rest.size(), word.size() + 1));
  return word;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (bool more = true; more;) {
    more = text.find(separator) != text.npos;
    std::string_view part = take_word(text, separator);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    parts.push_back(part);
  }
  return parts;
}

std::optional<std::string_view> nearest(std::string_view word, std::span<const std::string_view> names) {
  const auto longer = std::find_if(names.begin(), names.end(), [&](auto name) { return name.starts_with(word); });
  if (word.size() >= 4 && longer != names.end()) return *longer;
  std::optional<std::string_view> found;
  std::size_t fewest = std::min<std::size_t>(3, word.size() / 2) + 1;
  for (const std::string_view name : names) {
    const std::size_t letters = distance(word, name);
    if (letters < fewest) found = name;
    fewest = std::min(fewest, letters);
  }
  return found;
}

std::string first_too_small(std::initializer_list<AtLeast> values) {
  for (const AtLeast& it : values) {
    if (it.value < it.least) return fmt::format("{} is {}; give {} or more", it.name, it.value, it.least);
  }
  return {};
}

}  // namespace lockstep
