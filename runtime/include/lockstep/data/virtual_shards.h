// SPDX-License-Identifier: Apache-2.0
// A global batch in shards whose number the program fixes, so that what is computed on each does not depend on how many
// ranks share them (ddp/reproducible.h).
//
// All shards have one size, ceil(batch_size / shards) rows; a short last batch fills the first ones, and leaves others
// short or empty. A rank has a run of them.
#pragma once

#include <cstdint>

#include "lockstep/base/api.h"

namespace lockstep::data {

// Shards begin, begin + 1, ... end - 1.
struct ShardRun {
  int begin = 0;
  int end = 0;
  int count() const { return end - begin; }
  bool operator==(const ShardRun&) const = default;
};

// Those of `rank`, as even as can be: 8 over 3 ranks are [0, 2), [2, 5) and [5, 8). InvalidArgument if there are fewer
// shards than ranks.
LOCKSTEP_API ShardRun shards_of(int shards, int rank, int world);
// Rows of a shard that is full. InvalidArgument if one of the two is below 1, or batch_size
// above 2^40.
LOCKSTEP_API std::int64_t shard_rows(std::int64_t batch_size, int shards);

}  // namespace lockstep::data
