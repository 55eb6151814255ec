// SPDX-License-Identifier: Apache-2.0
// Clipping by the global norm.
#pragma once

#include <span>

#include "lockstep/base/api.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::optim {

// The 2-norm over all gradients that are there, taken as one vector: in double, parameter after parameter, so that
// equal gradients give equal bits on every rank.
LOCKSTEP_API double grad_norm(std::span<const Tensor> parameters);

// Scales all gradients by max_norm / norm if the norm is above max_norm. Returns the norm before.
// Error, with nothing changed, if the norm is not finite; it names the first parameter's position. InvalidArgument if
// max_norm is not above 0.
LOCKSTEP_API double clip_grad_norm(std::span<const Tensor> parameters, double max_norm);

}  // namespace lockstep::optim
