// SPDX-License-Identifier: Apache-2.0
// GlobalBatch is the batch of all ranks together in a step. It comes from their step notes, so no rank waits for
// another.
#pragma once

#include <cstdint>
#include <optional>

namespace lockstep {

// The same on every rank.
struct GlobalBatch {
  std::int64_t step = -1;   // counts synchronised steps from 0; -1: none is known yet
  std::int64_t weight = 0;  // rows, or set_weight()'s weights, of all ranks and micro-batches
  // The loss that a single process would have on the global batch: with Loss::mean the weighted mean, with Loss::sum
  // the sum. Each micro-batch's loss travels to within 2^-53, with many ranks or fixed micro-batches less exactly
  // (2^-42 with 1024). NaN if a rank's loss is not finite or too large to travel (2^55 with 8 ranks, 2^41 with 1024).
  // nullopt if no rank had rows, or a rank with rows did not record its loss.
  std::optional<double> loss = std::nullopt;
};

}  // namespace lockstep
