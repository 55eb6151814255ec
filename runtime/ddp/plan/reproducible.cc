// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/reproducible.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/data/sampler.h"

namespace lockstep {

std::vector<MicroBatch> micro_batches_of_step(const Reproducible& reproducible, std::int64_t rows, int rank,
                                              int world) {
  if (rows < 0)
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: backward got {} rows; give the number of rows of this rank's batch, at least 0",
        rows));
  if (!reproducible.is_on()) return {{.begin = 0, .end = rows}};
  const data::MicroBatchRange run = data::micro_batches_of(reproducible.micro_batches, rank, world);
  const std::int64_t each = data::micro_batch_rows(reproducible.global_batch, reproducible.micro_batches);
  if (rows / each + (rows % each != 0 ? 1 : 0) > run.count()) {
    throw InvalidArgument(
        fmt::format("fixed micro-batches: rank {} of {} has {} rows, but its {} fixed micro-batches of {} rows hold "
                    "only {}; deal the rows with a GlobalBatchSampler of micro_batches {} and global_batch {}",
                    rank, world, rows, run.count(), each, run.count() * each, reproducible.micro_batches,
                    reproducible.global_batch));
  }
  std::vector<MicroBatch> micro_batches;
  for (int index = run.begin; index < run.end; ++index) {
    const std::int64_t before = (index - run.begin) * each;
    micro_batches.push_back({.begin = std::min(rows, before),
                             .end = std::min(rows, before + each),
                             .index = index,
                             .is_last = index + 1 == run.end});
  }
  return micro_batches;
}

}  // namespace lockstep
