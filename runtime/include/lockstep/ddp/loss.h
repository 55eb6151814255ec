// SPDX-License-Identifier: Apache-2.0
// Defines Loss, which says whether a program's loss is the mean or the sum of its terms. DistributedDataParallel
// combines the ranks' gradients accordingly.
#pragma once

#include <cstdint>

namespace lockstep {

enum class Loss : std::uint8_t {
  // The loss is the mean over the rows, or over the terms that the weight counts (reduction='mean').
  // DistributedDataParallel averages the gradients over the terms of all ranks.
  mean,
  // The loss is the sum over its terms (reduction='sum'). DistributedDataParallel sums the gradients over the terms of
  // all ranks, without a division. A term that is not a sum over rows, such as a penalty on the parameters, is added
  // once per rank, so the program must divide the term by the number of ranks.
  sum,
};

}  // namespace lockstep
