// SPDX-License-Identifier: Apache-2.0
// Ranks as a flag names them: "0,3" or "0-2,7". Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::launcher {

class RankSet {
 public:
  // Every rank.
  RankSet() = default;
  // Numbers and ranges, with ',' between them; the ranks of a range may be written in rising order only. Nothing if the
  // text is none of that.
  static std::optional<RankSet> parse(std::string_view text);

  // As it was written.
  const std::string& text() const { return text_; }
  bool is_all() const { return ranges_.empty(); }
  bool contains(int rank) const;
  // Whether `ranks` ranks, from 0, have all that are named.
  bool fits(int ranks) const;

 private:
  std::string text_;
  std::vector<std::pair<int, int>> ranges_;  // first and last
};

}  // namespace lockstep::launcher
