// SPDX-License-Identifier: Apache-2.0
// Defines NotFinite, which says how a rank treats a gradient that is NaN or infinite.
#pragma once

#include <cstdint>

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"

namespace lockstep {

// NotFinite says how a rank treats a gradient that is NaN or infinite. Each rank checks its own gradients, bucket by
// bucket, before the ranks' gradients are summed, because a NaN in the sum would not show which rank caused the NaN.
// The check reads each gradient once. On a device, a kernel checks the gradients, the host does not wait, and the
// result of the check is known up to three steps later.
enum class NotFinite : std::uint8_t {
  // The rank logs the step and the first parameter, in the order of backward(), whose gradient is NaN or infinite, and
  // training continues. Programs with a loss scaler need NotFinite::tell, because loss scalers skip steps whose
  // gradients are NaN or infinite. The trace and all views of the run name the first parameter whose gradient is NaN or
  // infinite (docs/OBSERVE.md).
  tell,
  // The rank logs the step and the first parameter whose gradient is NaN or infinite, and throws NotFiniteGradient; the
  // group fails on every rank. The rank throws NotFiniteGradient before the gradient changes any parameter, so the
  // parameters keep the values that they had before the step. On a device, a later begin_step() throws
  // NotFiniteGradient, possibly after further steps have run.
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
