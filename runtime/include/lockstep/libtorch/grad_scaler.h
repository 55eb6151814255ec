// SPDX-License-Identifier: Apache-2.0
// GradScaler scales the loss for training in float16, like Python's torch.cuda.amp.GradScaler, and has the same default
// options. LibTorch's C++ API has no scaler.
//
//   lockstep::libtorch::GradScaler scaler;
//   for (auto& batch : *loader) {
//     optimizer.zero_grad();
//     scaler.scale(loss_of(ddp(batch.data), batch.target)).backward();
//     scaler.unscale_(optimizer);  // only to look at gradients, as clipping does
//     torch::nn::utils::clip_grad_norm_(model.parameters(), 1.0);
//     scaler.step(optimizer);  // leaves the step out if a gradient is Inf or NaN
//     scaler.update();
//   }
//
// To show the unscaled loss, record the loss before scaling: scaler.scale(ddp.record_loss(loss)).backward().
//
// Ranks: DistributedDataParallel gives every rank the same gradients, so an Inf of one rank is in the gradients of all
// ranks. All ranks therefore skip the same step and keep the same scale. A GradScaler sends nothing to other ranks,
// except with a ShardedOptimizer: a call of unscale_(), or of step() without unscale_(), is then collective. Ranks may
// disagree about an Inf in the gradients of parameters whose gradients no group reduces.
//
// Threads: one thread at a time uses a GradScaler.
// Failure: a GradScaler's functions throw InvalidArgument for options out of range, calls in a wrong order, sparse
//   gradients, and gradients in float16 (keep trained parameters in float32, or step a fused
//   optimizer without unscale_()).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <map>

#include "lockstep/base/api.h"

namespace lockstep::libtorch {

struct GradScalerOptions {
  double init_scale = 65536;
  // The factor, above 1, that multiplies the scale after growth_interval steps without an Inf or NaN.
  double growth_factor = 2;
  // The factor, between 0 and 1, that multiplies the scale after a step with an Inf or NaN.
  double backoff_factor = 0.5;
  // The number of steps without an Inf or NaN after which the scale grows, at least 1.
  std::int64_t growth_interval = 2000;
  // If false, scale() returns the unscaled loss, step() runs the optimizer's step, and the GradScaler's other functions
  // do nothing.
  bool enabled = true;
};

// GradScaler scales the loss, and adapts the scale to the gradients.
//
// On a GPU the scale stays in the device's memory. A fused optimizer (libtorch/fused_optimizers.h) reads the scale on
// the device, so the host never waits. For any other optimizer, GradScaler::step() waits once for the device, to know
// whether to call the optimizer's step(). The calls get_scale(), state() and save() also wait for the device. Training
// in bfloat16 needs no scaler, because bfloat16 has float32's range.
class LOCKSTEP_API GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  // Returns loss * scale, in float32 or a wider dtype. The backward of the scaled loss gives scaled gradients.
  at::Tensor scale(const at::Tensor& loss) const;
  // Divides the gradients of the optimizer's parameters by the scale, in place. Call unscale_() at most once per
  // optimizer between two calls of update().
  void unscale_(::torch::optim::Optimizer& optimizer);
  // Runs optimizer.step() on unscaled gradients, or skips the step if a gradient is Inf or NaN. Call step() once per
  // optimizer between two calls of update(). Returns found_inf, a float32 scalar on the gradients' device; found_inf is
  // not 0 if the step was skipped.
  at::Tensor step(::torch::optim::Optimizer& optimizer);
  // Adapts the scale for the next steps. Call update() after the steps of all optimizers.
  void update();
  // Sets the scale of the next steps to `new_scale`.
  void update(double new_scale);

  // State holds the scale and the growth tracker, for a snapshot (libtorch/snapshots.h). The call set_state() throws
  // InvalidArgument unless the scale is finite and above 0.
  struct State {
    double scale = 0;
    std::int64_t growth_tracker = 0;
  };
  State state() const { return read(tensors_); }
  void set_state(const State& state);
  // Tensors holds the tensors from which state() reads the scale and the growth tracker. The call tensors() does not
  // wait for the device. The call read() waits for the device, and returns the state at the time of the tensors() call.
  struct Tensors {
    at::Tensor scale;           // float32 scalar
    at::Tensor growth_tracker;  // int64 scalar: steps without an Inf or NaN since the scale changed
  };
  Tensors tensors() const { return tensors_; }
  static State read(const Tensors& tensors);

  double get_scale() const { return options_.enabled ? state().scale : 1; }
  const GradScalerOptions& options() const { return options_; }

  // The function save() writes scale and growth_tracker under the names of torch's state_dict(), and load() reads scale
  // and growth_tracker.
  void save(::torch::serialize::OutputArchive& archive) const;
  void load(::torch::serialize::InputArchive& archive);

 private:
  enum class Stage : std::uint8_t { ready, unscaled, stepped };
  struct Seen {
    Stage stage = Stage::ready;
    at::Tensor found_inf = {};
  };

  void set(double scale, std::int64_t growth_tracker);

  GradScalerOptions options_;
  // The tensors of the scale are on the CPU until the first call of scale(). The scaler never writes its tensors in
  // place, because a backward may still use the tensors.
  mutable Tensors tensors_;
  std::map<const ::torch::optim::Optimizer*, Seen> seen_;
};

}  // namespace lockstep::libtorch
