// SPDX-License-Identifier: Apache-2.0
// Words, numbers and lists in texts.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

namespace lockstep {

// Takes the text before the first `separator`, or all, from the front of `rest`, and the separator with it.
std::string_view take_word(std::string_view& rest, char separator = ' ');
// The parts of `text` between separators, at least one, each without the blanks around it.
std::vector<std::string_view> split(std::string_view text, char separator);

template <typename T>
concept Number = std::is_arithmetic_v<T>;

// The whole text as a number, nullopt if it is not one of the type's.
template <Number N>
std::optional<N> number_of(std::string_view text) {
  std::conditional_t<std::same_as<N, bool>, std::uint8_t, N> number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if constexpr (std::same_as<N, bool>) {
    if (number > 1) return std::nullopt;
  }
  return static_cast<N>(number);
}

// The shortest text that number_of() reads as the same number.
template <Number N>
std::string text_of(N number) {
  char text[32];
  std::conditional_t<std::same_as<N, bool>, int, N> value = number;
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

// Joins the texts that `describe` gives for the items into a list for a message; beyond `most` items the list ends with
// the number of the others.
template <typename Items, typename Describe>
std::string joined(const Items& items, Describe describe, std::string_view separator = ", ",
                   std::size_t most = std::numeric_limits<std::size_t>::max()) {
  std::string text;
  std::size_t count = 0;
  for (const auto& item : items) {
    if (++count > most) continue;
    if (count > 1) text += separator;
    text += std::invoke(describe, item);
  }
  if (count > most) text += fmt::format(" and {} more", count - most);
  return text;
}

// The name that `word` may stand for: the first that begins with it, if it has 4 letters or more; else the one with the
// fewest letters inserted, removed or changed (Levenshtein, "Binary codes capable of correcting deletions, insertions,
// and reversals", 1966), at most 3 and half of the word's. nullopt if no name is that near.
std::optional<std::string_view> nearest(std::string_view word, std::span<const std::string_view> names);

// Returns "1.5 GiB".
std::string readable_bytes(std::uint64_t bytes);

struct AtLeast {
  std::string_view name;
  std::int64_t value = 0;
  std::int64_t least = 0;
};
// "prefetch is 0; give 1 or more", of the first that is below its least; empty if none is.
std::string first_too_small(std::initializer_list<AtLeast> values);

}  // namespace lockstep
