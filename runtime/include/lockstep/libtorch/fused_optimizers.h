// SPDX-License-Identifier: Apache-2.0
// FusedAdamW, FusedAdam and FusedSGD step all parameters with one kernel, like Python's fused=True.
//
//   lockstep::libtorch::FusedAdamW optimizer(ddp.parameters(), torch::optim::AdamWOptions(3e-4).weight_decay(0.1));
//
// Each fused optimizer derives from the torch optimizer that it is named after, and has that optimizer's options,
// parameter groups, state and files. Schedulers, clipping, GradScaler and Snapshots take a fused optimizer as a
// torch::optim::Optimizer&. Fused and torch's optimizers read each other's files and snapshots, except that torch's
// optimizers can't read snapshots with float32 masters.
//
// Each 16-bit parameter (bfloat16, float16) gets a float32 copy, its master. The step updates the float32 master, and
// then rounds the master once into the parameter. Moments are float32. Masters take 4 bytes per element, and are
// part of files and snapshots.
//
// The step waits for no device. With a GradScaler, the scale and found_inf stay in the device's memory (step_scaled()).
// If an Inf or NaN was found, the step changes no parameter, moment or step count.
//
// Threads: one thread at a time uses a fused optimizer.
// Failure: a fused optimizer's functions throw InvalidArgument, and change nothing, for sparse gradients, and for
//   parameters that are sparse, complex or integers or whose elements share memory. The functions also throw
//   InvalidArgument for a gradient or moment whose size or device differs from its parameter's.
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
  // Returns whether this LibTorch has the fused operator for the devices of all parameters.
  virtual bool is_fused() const = 0;
  // Runs a step on the gradients of a scaled loss; the step divides these gradients by `grad_scale`, or by 1 if
  // `grad_scale` is undefined. If `found_inf` is not 0, step_scaled() skips the step. The step counts in state()
  // include skipped steps until save() or a snapshot waits for the device and corrects the counts. The division changes
  // the parameters' gradients in place. If is_fused(), the step works on copies of the gradients of 16-bit parameters,
  // and of gradients whose strides differ from the parameter's; the original gradients stay undivided. Both
  // `grad_scale` and `found_inf` are float32 tensors of one element, on any device. If is_fused() is false, the host
  // waits for the values of `grad_scale` and `found_inf`. FusedSGD with dampening throws InvalidArgument.
  virtual void step_scaled(const at::Tensor& grad_scale, const at::Tensor& found_inf) = 0;
};

// Fused is the fused version of torch's optimizer `Base`.
//
// The program may write a 16-bit parameter, for example to load or broadcast weights. If torch counts a write in the
// parameter's _version(), the next step copies the new value into the float32 master. Torch does not count a write
// through parameter.data(), data_ptr() or set_data(), and the next step undoes such an uncounted write. To change a
// parameter, write the parameter's own tensor in place under a torch::NoGradGuard, and not parameter.data().
//
// The step needs LibTorch's fused operator for the parameters' device; LibTorch 2.4 has the fused operators of AdamW,
// Adam and SGD for CPUs. If the fused operator is missing (LibTorch 1.13 has none), step() runs the step of torch's
// optimizer, without masters, and the first step() logs that the operator is missing. FusedAdamW, FusedAdam and
// FusedSGD call the operators that PyTorch's torch/optim/{adam,adamw,sgd}.py call.
//
// Parameters and gradients may have any strides, which may change between steps. The fused operators need parameter,
// gradient and moments in the same order in memory. A fused step therefore copies a gradient whose elements lie in
// another order, and changes the order of the moments once. If a parameter has gaps in its memory (a column slice), the
// step updates a copy of the parameter, and copies the result back.
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
