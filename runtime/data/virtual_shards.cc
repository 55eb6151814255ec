// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/sampler.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::data {

ShardRun shards_of(int shards, int rank, int world) {
  if (world < 1 || rank < 0 || rank >= world) {
    throw InvalidArgument(
        fmt::format("virtual shards: rank {} of world size {}; rank must be in [0, world size)", rank, world));
  }
  if (shards < world) {
    throw InvalidArgument(
        fmt::format("virtual shards: {} of them for {} ranks, so that one would have none; take at least {}, or fewer "
                    "ranks",
                    shards, world, world));
  }
  const auto cut = [&](std::int64_t before) { return static_cast<int>(before * shards / world); };
  return {cut(rank), cut(rank + std::int64_t{1})};
}

std::int64_t shard_rows(std::int64_t batch_size, int shards) {
  constexpr std::int64_t kMostRows = std::int64_t{1} << 40;  // times any number of shards it fits in 64 bits
  if (batch_size < 1 || batch_size > kMostRows || shards < 1) {
    throw InvalidArgument(
        fmt::format("virtual shards: {} of them for a batch of {} rows; give the rows of a full step of all ranks "
                    "together, from 1 to {}, and at least 1 shard",
                    shards, batch_size, kMostRows));
  }
  return batch_size / shards + (batch_size % shards != 0 ? 1 : 0);
}

}  // namespace lockstep::data
