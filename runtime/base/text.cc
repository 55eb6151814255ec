// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/text.h"

#include <algorithm>

namespace lockstep {

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

std::string first_too_small(std::initializer_list<AtLeast> values) {
  for (const AtLeast& it : values) {
    if (it.value < it.least) return fmt::format("{} is {}; give {} or more", it.name, it.value, it.least);
  }
  return {};
}

}  // namespace lockstep
