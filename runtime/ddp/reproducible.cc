// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/reproducible.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/data/sampler.h"
#include "runtime/ddp/arguments.h"

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

void refuse_no_sync(const Reproducible& reproducible, bool in_no_sync, std::int64_t step) {
  if (!in_no_sync) return;
  throw InvalidArgument(
      fmt::format("DistributedDataParallel: no_sync() in step {}, of {} virtual shards, which are micro-batches "
                  "themselves: take a larger batch, and more of them",
                  step, reproducible.virtual_shards));
}

void require_rows_of_shard(const StepShard& shard, std::int64_t rows) {
  if (rows == shard.end - shard.begin) return;
  throw InvalidArgument(fmt::format(
      "DistributedDataParallel: the forward of virtual shard {} had {} rows, and the shard is rows {} to {} "
      "of this rank's: take those that loss_of is given, or set_weight() in each shard where rows are "
      "not what a loss is the mean of",
      shard.index, rows, shard.begin, shard.end));
}

void require_dealt_as_shards(const Reproducible& reproducible, std::int64_t rows, std::int64_t rows_of_all, int rank,
                             int world) {
  const std::int64_t wanted =
      data::rows_in_shards(rows_of_all, reproducible.batch_size, reproducible.virtual_shards, rank, world).count;
  if (rows == wanted) return;
  throw InvalidArgument(fmt::format(
      "DistributedDataParallel: rank {} of {} has {} of the step's {} rows, and virtual shards of {} rows "
      "give it {}: another number of ranks would compute something else; deal the rows with a "
      "BatchShardSampler of virtual_shards {} and batches of {}, and set weights in each shard or in none",
      rank, world, rows, rows_of_all, data::shard_rows(reproducible.batch_size, reproducible.virtual_shards), wanted,
      reproducible.virtual_shards, reproducible.batch_size));
}

}  // namespace lockstep
