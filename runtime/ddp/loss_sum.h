// SPDX-License-Identifier: Apache-2.0
// This rank's loss and weight over the micro-batches of a step, how they ride in its note, and what the ranks' notes
// come to.
//
// A note has integers that are added up. So a rank's sum is kept and travels as a whole number and a fraction in fixed
// point, with room for as many of either as there are parts; a value that no sum of others reaches says that there is
// none. The sum does not depend on the order of the parts, nor on which of them a rank has.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/ddp/global_batch.h"
#include "lockstep/ddp/loss.h"
#include "lockstep/ddp/reproducible.h"
#include "lockstep/ddp/step_note.h"
#include "runtime/base/internal_api.h"

namespace lockstep {

// In how many parts a step's loss is told.
inline int loss_parts(const Reproducible& reproducible, int ranks) {
  return reproducible.is_on() ? reproducible.virtual_shards : ranks;
}

class LOCKSTEP_INTERNAL_API LossSum {
 public:
  // `parts`: loss_parts(), equal on all ranks.
  explicit LossSum(int parts);

  // A micro-batch's loss, as `kind` says what it is of its terms, and its weight. A loss of weight 0 doesn't count.
  void add(Loss kind, std::optional<double> loss, std::int64_t weight);
  // Fills in weight and loss.
  void write(StepNote& note) const;

 private:
  int parts_;
  std::int64_t whole_ = 0;
  std::int64_t fraction_ = 0;
  std::int64_t weight_ = 0;
  bool is_known_ = true;
  bool is_finite_ = true;  // and not too large to be told
};

LOCKSTEP_INTERNAL_API GlobalBatch global_batch_of(const NotedStep& noted, Loss kind, int parts);

}  // namespace lockstep
