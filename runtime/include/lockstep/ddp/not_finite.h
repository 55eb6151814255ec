// SPDX-License-Identifier: Apache-2.0
// How a gradient that is NaN or infinite is treated.
#pragma once

#include <cstdint>

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"

namespace lockstep {

// Each rank looks at its own gradients, bucket by bucket, before they are added to the others': once the sum is NaN it
// is NaN on every rank, and the rank that caused it can't be found. Each rank reads its gradients once for that; on a
// device a kernel does, no host waits, and its findings are known up to three steps later.
enum class NotFinite : std::uint8_t {
  // The rank logs the parameter, the first in the order of backward, and the step, and training continues: a loss
  // scaler skips such steps. The finding is in the trace and in every view of the run (docs/OBSERVE.md).
  tell,
  // And then throws NotFiniteGradient, with which the group fails on every rank, before the gradient has gone into
  // anything: the parameters are those of the step before. On a device, where steps may have gone on, some begin_step
  // after that throws it.
  raise,
  // No rank looks.
  ignore,
};

// A gradient of this rank's is NaN or infinite (NotFinite::raise).
class LOCKSTEP_API NotFiniteGradient : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep
