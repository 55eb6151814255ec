// SPDX-License-Identifier: Apache-2.0
// This rank's loss and weight over the micro-batches of a step, how they ride in its note, and what the ranks' notes
// come to.
//
// A note has integers that are added up. So a rank's sum travels as a whole number and a fraction in fixed point, with
// room for as many of either as there are ranks; a value that no sum of others reaches says that there is none.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/ddp/global_batch.h"
#include "lockstep/ddp/loss.h"
#include "lockstep/ddp/step_note.h"
#include "runtime/base/internal_api.h"

namespace lockstep {

class LOCKSTEP_INTERNAL_API LossSum {
 public:
  // A micro-batch's loss, as `kind` says what it is of its terms, and its weight. A loss of weight 0 doesn't count.
  void add(Loss kind, std::optional<double> loss, std::int64_t weight);
  // Fills in weight and loss. `ranks` is the group's size.
  void write(StepNote& note, int ranks) const;

 private:
  double sum_ = 0;
  std::int64_t weight_ = 0;
  bool is_known_ = true;
};

LOCKSTEP_INTERNAL_API GlobalBatch global_batch_of(const NotedStep& noted, Loss kind, int ranks);

}  // namespace lockstep
