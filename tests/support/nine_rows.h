// SPDX-License-Identifier: Apache-2.0
// A batch of nine rows, dealt out unevenly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::testing {

inline constexpr std::int64_t kNineRows = 9;

// Rows [begin, end) of rank `rank` of one, two or three; each has some.
struct NineRowsPart {
  std::int64_t begin, end;
};
inline NineRowsPart part_of_nine(int rank, int ranks) {
  const std::vector<std::int64_t> cuts = ranks == 1   ? std::vector<std::int64_t>{0, kNineRows}
                                         : ranks == 2 ? std::vector<std::int64_t>{0, 7, kNineRows}
                                                      : std::vector<std::int64_t>{0, 2, 7, kNineRows};
  return {cuts[static_cast<std::size_t>(rank)], cuts[static_cast<std::size_t>(rank) + 1]};
}

}  // namespace lockstep::testing
