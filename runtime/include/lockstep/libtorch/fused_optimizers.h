// SPDX-License-Identifier: Apache-2.0
// The fused AdamW, Adam and SGD step all parameters with one kernel, like Python's fused=True.
//
//   lockstep::libtorch::FusedAdamW optimizer(ddp.parameters(), torch::optim::AdamWOptions(3e-4).weight_decay(0.1));
//
// Each fused class derives from torch's optimizer of that name: a fused optimizer has torch's options, parameter
// groups, state and files, and is a torch::optim::Optimizer& for schedulers, clipping, GradScaler and Snapshots. A
// fused class reads files and snapshots of torch's class, and torch's class reads files and snapshots of the fused
// class (except snapshots with masters).
//
// Each 16-bit parameter (bfloat16, float16) gets a float32 master. The step updates the master, and the
// parameter is the master rounded once. Moments are float32 too. Masters cost 4 bytes per element, and are in
// save() and in snapshots.
//
// The step waits for no device. With a GradScaler, scale and found_inf stay on the device (step_scaled): if an Inf or
// NaN was found, parameters, moments and step counts keep their values. The step counts in state() include skipped
// steps until save() or a snapshot, which wait for the device, correct the counts.
//
// Threads: one thread at a time uses an optimizer.
// Failure: calls throw InvalidArgument, with nothing changed, for parameters that are sparse, complex or integers or
//   whose elements share memory, for sparse gradients, for gradients and moments of another size or on another device
//   than their parameter, and for FusedSGD with dampening in a GradScaler's step.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/api.h"

namespace lockstep::libtorch {

// FusedOptimizer is an optimizer that takes a GradScaler's scale and found_inf as tensors, without asking the device
// for their values.
class LOCKSTEP_API FusedOptimizer {
 public:
  virtual ~FusedOptimizer() = default;
  // Returns whether this LibTorch has the operator for the devices of all parameters.
  virtual bool is_fused() const = 0;
  // Steps on gradients that are multiplied by `grad_scale` (undefined: by 1); does not step if `found_inf` is not 0.
  // The call divides the gradients in place; with is_fused() gradients that the step copies (of 16-bit parameters, of
  // other strides) stay undivided. Both arguments are float32 tensors of one element, on any device. Without is_fused()
  // the host waits for both values.
  virtual void step_scaled(const at::Tensor& grad_scale, const at::Tensor& found_inf) = 0;
};

// Fused is the fused version of torch's optimizer `Base`.
//
// The program may write a 16-bit parameter (to load weights, or to broadcast them): the next step copies a write that
// torch counts (_version()) into the master. The step undoes a write that torch does not count, through
// parameter.data(), data_ptr() or set_data(): write the parameter itself, under a torch::NoGradGuard.
//
// The step needs LibTorch's fused operators for the parameters' device: LibTorch 2.4 has all three for CPUs. If an
// operator is missing (LibTorch 1.13 has none), the step is the step of torch's class, without masters, and the first
// step logs this fact. Source: PyTorch's torch/optim/{adam,adamw,sgd}.py, whose operators these classes call.
//
// Strides may be any, and may change between steps. The operators need parameter, gradient and moments in one order in
// memory: a gradient in another order is copied, moments are moved once, and a parameter with gaps in its memory (a
// column slice) is stepped in a copy.
template <typename Base>
class LOCKSTEP_API Fused : public Base, public FusedOptimizer {
 public:
  using Base::Base;

  at::Tensor step(::torch::optim::Optimizer::LossClosure closure = nullptr) override;
  bool is_fused() const override;
  void step_scaled(const at::Tensor& grad_scale, const at::Tensor& found_inf) override;
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;
};

using FusedAdamW = Fused<::torch::optim::AdamW>;
using FusedAdam = Fused<::torch::optim::Adam>;
using FusedSGD = Fused<::torch::optim::SGD>;

extern template class Fused<::torch::optim::AdamW>;
extern template class Fused<::torch::optim::Adam>;
extern template class Fused<::torch::optim::SGD>;

}  // namespace lockstep::libtorch
