// SPDX-License-Identifier: Apache-2.0
// Defines how a rank treats a gradient that is NaN or infinite.
#pragma once

#include <cstdint>

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"

namespace lockstep {

// NotFinite says how a rank treats a gradient that is NaN or infinite. Each rank checks its own gradients, bucket by
// bucket, before they are added to the other ranks' gradients. In the sum, a NaN would be on every rank, and no longer
// show which rank caused the NaN. The check reads each gradient once. On a device a kernel checks, the host does not
// wait, and the result is known up to three steps later.
enum class NotFinite : std::uint8_t {
  // The rank logs the step and the first parameter whose gradient is NaN or infinite, in the order of backward, and
  // training continues. Loss scalers need this setting, because they skip steps with NaN or infinity. The trace and
  // every view of the run show the parameter (docs/OBSERVE.md).
  tell,
  // The rank logs step and parameter and throws NotFiniteGradient, and the group fails on every rank. The exception is
  // thrown before the gradient reaches any parameter, so the parameters are those of the step before. On a device a
  // later begin_step throws NotFiniteGradient, and more steps may have run before.
  raise,
  // No rank checks its gradients.
  ignore,
};

// Thrown if a gradient of this rank is NaN or infinite (NotFinite::raise).
class LOCKSTEP_API NotFiniteGradient : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep
