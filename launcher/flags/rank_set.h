// SPDX-License-Identifier: Apache-2.0
// A set of ranks as flags write it: "0,3" or "0-2,7". Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::launcher {

class RankSet {
 public:
  // Makes the set of all ranks.
  RankSet() = default;
  // Parses numbers and ranges, with ',' between them; a range names its lower rank first. Returns nullopt for any other
  // text.
  static std::optional<RankSet> parse(std::string_view text);

  // Returns the text that was parsed.
  const std::string& text() const { return text_; }
  bool is_all() const { return ranges_.empty(); }
  bool contains(int rank) const;
  // Returns true if a job of `ranks` ranks, from 0, has every rank that is named.
  bool fits(int ranks) const;

 private:
  std::string text_;
  std::vector<std::pair<int, int>> ranges_;  // first and last rank of each
};

}  // namespace lockstep::launcher
