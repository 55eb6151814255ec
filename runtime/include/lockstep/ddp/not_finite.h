// SPDX-License-Identifier: Apache-2.0
// How a rank treats a gradient that is NaN or infinite.
#pragma once

#include <cstdint>

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"

namespace lockstep {

// Each rank looks at its own gradients, bucket by bucket, before they are added to the other ranks' gradients: once the
// sum is NaN it is NaN on every rank, and the rank that caused it can't be found. The look reads each gradient once. On
// a device a kernel looks, no host waits, and findings are known up to three steps later.
enum class NotFinite : std::uint8_t {
  // The rank logs step and parameter (the first in the order of backward), and training continues: a loss scaler skips
  // such steps. The trace and every view of the run have the finding (docs/OBSERVE.md).
  tell,
  // The rank logs it and throws NotFiniteGradient, and the group fails on every rank, before the gradient reaches any
  // parameter: the parameters are those of the step before. On a device a later begin_step throws it, after more steps
  // may have run.
  raise,
  // No rank looks.
  ignore,
};

// Thrown if a gradient of this rank is NaN or infinite (NotFinite::raise).
class LOCKSTEP_API NotFiniteGradient : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep
