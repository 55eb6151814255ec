// SPDX-License-Identifier: Apache-2.0
// Checks of the numbers that a program gives a DistributedDataParallel.
#pragma once

#include <cstdint>

#include "lockstep/ddp/reproducible.h"
#include "runtime/base/internal_api.h"

namespace lockstep {

// InvalidArgument if a number of steps that a program gives is negative; else the number.
LOCKSTEP_INTERNAL_API std::int64_t checked_steps(std::int64_t steps);
// InvalidArgument if a weight that a program gives is negative; else the weight.
LOCKSTEP_INTERNAL_API std::int64_t checked_weight(std::int64_t weight);

// InvalidArgument for a step in virtual shards within no_sync().
LOCKSTEP_INTERNAL_API void refuse_no_sync(const Reproducible& reproducible, bool in_no_sync, std::int64_t step);
// InvalidArgument if a forward had other rows than those of its virtual shard.
LOCKSTEP_INTERNAL_API void require_rows_of_shard(const StepShard& shard, std::int64_t rows);
// InvalidArgument if this rank has other rows of a step of `rows_of_all` than its virtual shards are of.
LOCKSTEP_INTERNAL_API void require_dealt_as_shards(const Reproducible& reproducible, std::int64_t rows,
                                                   std::int64_t rows_of_all, int rank, int world);

}  // namespace lockstep
