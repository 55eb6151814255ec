// SPDX-License-Identifier: Apache-2.0
// Defines GlobalBatch, which describes the global batch of one step: the batches of all ranks together. The numbers of
// a GlobalBatch come from the ranks' step notes (ddp/step_note.h), so a rank does not wait for other ranks to get
// these numbers.
#pragma once

#include <cstdint>
#include <optional>

namespace lockstep {

// GlobalBatch has equal values on every rank.
struct GlobalBatch {
  std::int64_t step = -1;   // number of the synchronised step, from 0; -1: no step is known yet
  std::int64_t weight = 0;  // sum of the rows, or of set_weight()'s weights, over all ranks and micro-batches
  // The loss that a single process would compute on the global batch: with Loss::mean the weighted mean of the ranks'
  // losses, with Loss::sum the sum. `loss` is nullopt if no rank had rows, or if a rank with rows did not record its
  // loss. `loss` is NaN if a rank's loss is not finite, or larger than a step note can hold (2^55 with 8 ranks, 2^41
  // with 1024 ranks).
  //
  // Each micro-batch's loss is sent with a precision of 2^-53; the precision is lower with many ranks or fixed
  // micro-batches (2^-42 with 1024 ranks or micro-batches).
  std::optional<double> loss = std::nullopt;
};

}  // namespace lockstep
