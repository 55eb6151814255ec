// SPDX-License-Identifier: Apache-2.0
// Clipping by the global norm.
#pragma once

#include <span>
#include <utility>

#include "lockstep/base/api.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::optim {

// A norm. On a device it is there once somebody asks, who waits for the device's stream then.
class LOCKSTEP_API GradNorm {
 public:
  explicit GradNorm(Tensor norm) : norm_(std::move(norm)) {}
  double value() const;
  // NOLINTNEXTLINE(google-explicit-constructor): it is a number
  operator double() const { return value(); }

 private:
  Tensor norm_;  // one float64
};

// The 2-norm over all gradients that are there, taken as one vector: in double, parameter after parameter, so that
// equal gradients give equal bits on every rank. InvalidArgument for parameters on several devices.
LOCKSTEP_API GradNorm grad_norm(std::span<const Tensor> parameters);

// Scales all gradients by max_norm / norm if the norm is above max_norm. Returns the norm before; on the CPU it is
// logged as "grad_norm" (metrics/log_scalar.h).
// Error, with nothing changed, if the norm is not finite; it names the first parameter's position. On a device the
// gradients become 0 then, and the next call that waits for the device throws. InvalidArgument if max_norm is not above
// 0, and as grad_norm.
LOCKSTEP_API GradNorm clip_grad_norm(std::span<const Tensor> parameters, double max_norm);

}  // namespace lockstep::optim
