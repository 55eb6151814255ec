// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/comm/row_counts.h"
#include "runtime/train/compute_stream.h"

namespace lockstep {

Tensor gather_rows(const Tensor& rows, ProcessGroup& group, int root) {
  const auto ranks = static_cast<std::size_t>(group.size());
  if (!rows || rows.shape().dims() == 0) {
    throw InvalidArgument(
        fmt::format("gather_rows: rank {} gave {}; wanted at least one dimension", group.rank(), rows.str()));
  }
  if (rows.device() != group.device()) {
    throw InvalidArgument(
        fmt::format("gather_rows: rank {} gave rows on {}, and the group is on {}; move them with to()", group.rank(),
                    rows.device().str(), group.device().str()));
  }
  join_compute_stream(group);
  const std::vector<std::int64_t> counts = comm::row_counts(
      group, "gather_rows", rows.size(0), fmt::format("{}{}", name_of(rows.dtype()), rows.shape().with_first(0).str()));
  const std::int64_t longest = *std::max_element(counts.begin(), counts.end());
  const Tensor mine = Tensor::zeros(rows.shape().with_first(longest), rows.dtype(), rows.device());
  mine.view_rows(0, rows.size(0)).copy_from(rows);
  const bool is_root = group.rank() == root;
  const Tensor all = Tensor::empty(rows.shape().with_first(is_root ? longest * static_cast<std::int64_t>(ranks) : 0),
                                   rows.dtype(), rows.device());
  if (longest > 0) group.gather(mine.view(), all.view(), root).wait();
  if (!is_root) return {};

  std::int64_t total = 0;
  for (const std::int64_t count : counts) total += count;
  Tensor result = Tensor::empty(rows.shape().with_first(total), rows.dtype(), rows.device());
  std::int64_t next = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto from = static_cast<std::int64_t>(rank) * longest;
    result.view_rows(next, next + counts[rank]).copy_from(all.view_rows(from, from + counts[rank]));
    next += counts[rank];
  }
  return result;
}

}  // namespace lockstep
