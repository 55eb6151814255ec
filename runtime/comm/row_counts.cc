// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/row_counts.h"

#include <fmt/format.h>

#include <array>
#include <span>

#include "runtime/base/hash.h"
#include "runtime/comm/disagreement.h"

namespace lockstep::comm {
namespace {

[[noreturn]] void throw_unlike(ProcessGroup& group, std::string_view operation, const std::string& kind) {
  const std::vector<std::string> kinds = all_gather_text(group, kind);
  std::size_t rank = 0;
  while (rank + 1 < kinds.size() && kinds[rank] == kinds[0]) ++rank;
  throw_disagreement(group, fmt::format("{}: rank 0 gave rows like {}, rank {} like {}; they must be alike", operation,
                                        kinds[0], rank, kinds[rank]));
}

}  // namespace

std::vector<std::int64_t> row_counts(ProcessGroup& group, std::string_view operation, std::int64_t rows,
                                     const std::string& kind) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::array<std::int64_t, 2> own{rows, static_cast<std::int64_t>(hash64(kind))};
  std::vector<std::int64_t> all(2 * ranks);
  group.all_gather(BufferView(std::span<std::int64_t>(own)), BufferView(std::span(all))).wait();
  std::vector<std::int64_t> counts;
  bool are_alike = true;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    counts.push_back(all[2 * rank]);
    are_alike = are_alike && all[2 * rank + 1] == all[1];
  }
  if (!are_alike) throw_unlike(group, operation, kind);
  return counts;
}

}  // namespace lockstep::comm
