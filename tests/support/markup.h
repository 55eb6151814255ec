// SPDX-License-Identifier: Apache-2.0
// A page of ours as tests read it: HTML that is XML, but for its first line.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep::testing {

// What is wrong with the nesting and quoting of its tags; empty: nothing.
inline std::string fault_of_markup(const std::string& page) {
  std::vector<std::string> open;
  for (std::size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1)) {
    if (page.compare(at, 9, "<!DOCTYPE") == 0) continue;
    std::size_t end = at + 1;
    for (bool is_quoted = false; end < page.size() && (is_quoted || page[end] != '>'); ++end) {
      if (page[end] == '"') is_quoted = !is_quoted;
      if (page[end] == '<') return "a tag within the tag at " + page.substr(at, 80);
    }
    if (end >= page.size()) return "no end of the tag at " + page.substr(at, 80);
    const std::string tag = page.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag.front() == '/') {
      if (open.empty() || "/" + open.back() != tag)
        return "</" + tag.substr(1) + "> where " + (open.empty() ? "nothing" : open.back()) + " is open";
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : "no end of <" + open.back() + ">";
}

inline std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

}  // namespace lockstep::testing
