// SPDX-License-Identifier: Apache-2.0
// What a loss is of its terms: the gradients of a global batch are made from the ranks' accordingly.
#pragma once

#include <cstdint>

namespace lockstep {

enum class Loss : std::uint8_t {
  // The mean over rows, or over what the weight counts (reduction='mean'). Gradients are the mean over all ranks'
  // terms.
  mean,
  // The sum over its terms (reduction='sum'). Gradients are the sum over all ranks' terms; nothing is divided. What is
  // no sum over rows, as a penalty on the parameters, would count once per rank: divide it by the number of ranks.
  sum,
};

}  // namespace lockstep
