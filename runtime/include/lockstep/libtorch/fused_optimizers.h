// SPDX-License-Identifier: Apache-2.0
// AdamW, Adam and SGD with a step that is one kernel for all parameters, as Python's fused=True.
//
//   lockstep::libtorch::FusedAdamW optimizer(ddp.parameters(), torch::optim::AdamWOptions(3e-4).weight_decay(0.1));
//
// Each derives from torch's optimizer of that name: it has its options, parameter groups, state and files, and is a
// torch::optim::Optimizer& for schedulers, clipping, GradScaler and Snapshots. It reads files and snapshots of torch's
// class, and torch's class reads its files and snapshots (except snapshots with masters).
//
// 16-bit parameters (bfloat16, float16) get a float32 master each. The step updates the master, and the parameter is
// the master rounded once. Moments are float32 too. Masters cost 4 bytes per element, and are in save() and in
// snapshots.
//
// The program may write a 16-bit parameter (to load weights, or to broadcast them): the next step takes a write that
// torch counts (_version()) over into the master. It undoes a write that torch does not count, through
// parameter.data(), data_ptr() or set_data(): write the parameter itself, under a torch::NoGradGuard.
//
// The step waits for no device. With a GradScaler, scale and found_inf stay on the device (step_scaled): if an Inf or
// NaN was found, parameters, moments and step counts keep their values. The step counts in state() include such steps
// until save() or a snapshot, which wait for the device, correct them.
//
// It needs LibTorch's fused operators for the parameters' device: LibTorch 2.4 has all three for CPUs. If one is
// missing (LibTorch 1.13 has none) the step is that of torch's class, without masters, which the first step logs.
// Source: PyTorch's torch/optim/{adam,adamw,sgd}.py, whose operators these call.
//
// Strides may be any, and may change between steps. The operators need parameter, gradient and moments in one order in
// memory: a gradient in another order is copied, moments are moved once, and a parameter with gaps in its memory (a
// column slice) is stepped in a copy.
//
// Threads: one at a time.
// Failure: InvalidArgument, with nothing changed, for parameters that are sparse, complex or integers or whose elements
//   share memory, for sparse gradients, for gradients and moments of another size or on another device than their
//   parameter, and for FusedSGD with dampening in a GradScaler's step.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/api.h"

namespace lockstep::libtorch {

// An optimizer that takes a GradScaler's scale and found_inf as tensors, without asking the device for their values.
class LOCKSTEP_API FusedOptimizer {
 public:
  virtual ~FusedOptimizer() = default;
  // Whether this LibTorch has the operator for the devices of all parameters.
  virtual bool is_fused() const = 0;
  // Steps on gradients that are multiplied by `grad_scale` (undefined: by 1); does not step if `found_inf` is not 0. It
  // divides the gradients in place, except, with is_fused(), those that it copies (of 16-bit parameters, of other
  // strides). Both arguments are float32 tensors of one element, on any device. Without is_fused() the host waits for
  // them.
  virtual void step_scaled(const at::Tensor& grad_scale, const at::Tensor& found_inf) = 0;
};

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
