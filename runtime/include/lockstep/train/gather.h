// SPDX-License-Identifier: Apache-2.0
// What a training loop asks of all ranks outside the gradients. Collective and blocking: all ranks call them.
#pragma once

#include <cstdint>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Rank `root` gets every rank's rows (dimension 0) in rank order, the others an undefined tensor: the opposite of the
// split by data::chunk. Ranks may have different numbers of rows, also none. Nothing is recorded for backward.
// Mismatch, on every rank, if the rows differ in shape or dtype.
LOCKSTEP_API Tensor gather_rows(const Tensor& rows, ProcessGroup& group, int root = 0);

// The mean over all ranks of what each rank's `mean` is the mean of, where `weight` counts its terms: the loss of the
// global batch, from the losses of its shards. 0 if nobody has any.
// A mean of weight 0 doesn't count, whatever it is. InvalidArgument if the weight is negative.
LOCKSTEP_API double mean_over_ranks(double mean, std::int64_t weight, ProcessGroup& group);

}  // namespace lockstep
