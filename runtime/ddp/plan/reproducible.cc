// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/reproducible.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/data/sampler.h"

namespace lockstep {

std::vector<StepShard> shards_of_step(const Reproducible& reproducible, std::int64_t rows, int rank, int world) {
  if (rows < 0) throw InvalidArgument(fmt::format("DistributedDataParallel: backward of {} rows", rows));
  if (!reproducible.is_on()) return {{.begin = 0, .end = rows}};
  const data::ShardRun run = data::shards_of(reproducible.virtual_shards, rank, world);
  const std::int64_t each = data::shard_rows(reproducible.batch_size, reproducible.virtual_shards);
  if (rows / each + (rows % each != 0 ? 1 : 0) > run.count()) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: rank {} of {} has {} rows, and its {} virtual shards of {} rows hold {}; "
                    "deal the rows with a BatchShardSampler of virtual_shards {} and batches of {}",
                    rank, world, rows, run.count(), each, run.count() * each, reproducible.virtual_shards,
                    reproducible.batch_size));
  }
  std::vector<StepShard> shards;
  for (int index = run.begin; index < run.end; ++index) {
    const std::int64_t before = (index - run.begin) * each;
    shards.push_back({.begin = std::min(rows, before),
                      .end = std::min(rows, before + each),
                      .index = index,
                      .is_last = index + 1 == run.end});
  }
  return shards;
}

}  // namespace lockstep
