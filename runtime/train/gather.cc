// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/comm/row_counts.h"
#include "runtime/train/compute_stream.h"

namespace lockstep {

namespace {

// This rank's rows, and how many each rank has. `collect(mine, all)` puts the rows of all ranks into `all` where this
// rank `receives` them; `mine` are its own, as many as of the rank with the most, the others zeros.
template <typename Collect>
Tensor collected(const char* call, const Tensor& rows, ProcessGroup& group, bool receives, Collect collect) {
  const auto ranks = static_cast<std::size_t>(group.size());
  if (!rows || rows.shape().dims() == 0) {
    throw InvalidArgument(fmt::format(
        "{}: rank {} gave rows that are {}; give a tensor of at least one dimension (0 rows if this rank has none)",
        call, group.rank(), rows.str()));
  }
  if (rows.device() != group.device()) {
    throw InvalidArgument(fmt::format(
        "{}: rank {} gave rows on {}, but the group is on {}; move the rows to the group's device with to()", call,
        group.rank(), rows.device().str(), group.device().str()));
  }
  join_compute_stream(group);
  const std::vector<std::int64_t> counts = comm::row_counts(
      group, call, rows.size(0), fmt::format("{}{}", name_of(rows.dtype()), rows.shape().with_first(0).str()));
  const std::int64_t longest = *std::max_element(counts.begin(), counts.end());
  const Tensor mine = Tensor::zeros(rows.shape().with_first(longest), rows.dtype(), rows.device());
  mine.view_rows(0, rows.size(0)).copy_from(rows);
  const Tensor all = Tensor::empty(rows.shape().with_first(receives ? longest * static_cast<std::int64_t>(ranks) : 0),
                                   rows.dtype(), rows.device());
  if (longest > 0) collect(mine.view(), all.view());
  if (!receives) return {};

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

}  // namespace

Tensor gather_rows(const Tensor& rows, ProcessGroup& group, int root) {
  return collected("gather_rows", rows, group, group.rank() == root,
                   [&](const BufferView& mine, const BufferView& all) { group.gather(mine, all, root).wait(); });
}

Tensor all_gather_rows(const Tensor& rows, ProcessGroup& group) {
  return collected("all_gather_rows", rows, group, true,
                   [&](const BufferView& mine, const BufferView& all) { group.all_gather(mine, all).wait(); });
}

}  // namespace lockstep
