// SPDX-License-Identifier: Apache-2.0
// Defines how a loss combines its terms: as mean or sum. The gradients of the global batch depend on this choice.
#pragma once

#include <cstdint>

namespace lockstep {

enum class Loss : std::uint8_t {
  // The loss is the mean over rows, or over the terms that the weight counts (reduction='mean'). Gradients are the mean
  // over all ranks' terms.
  mean,
  // The loss is the sum over its terms (reduction='sum'). Gradients are the sum over all ranks' terms, without a
  // division. A term that is not a sum over rows, such as a penalty on the parameters, counts once per rank: divide it
  // by the number of ranks.
  sum,
};

}  // namespace lockstep
