// SPDX-License-Identifier: Apache-2.0
// GradScaler scales the loss for float16, which LibTorch's C++ lacks: torch.cuda.amp.GradScaler, with its defaults.
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
// To show the unscaled loss, record it before scaling: scaler.scale(ddp.record_loss(loss)).backward().
//
// Over ranks: DistributedDataParallel gives every rank the same bits, so an Inf of one rank is in the gradients of all,
// and all ranks leave out the same step and keep the same scale. Nothing is sent, except for a ShardedOptimizer, with
// which unscale_(), or step() without it, is collective. This does not hold for parameters that no group reduces.
//
// On a GPU the scale stays on the device. A fused optimizer (libtorch/fused_optimizers.h) reads it there, and the host
// never waits; for any other optimizer step() waits once, to know whether to call it. get_scale(), state() and save()
// wait too. bfloat16 has float32's range and needs no scaler.
//
// Threads: one at a time.
// Failure: InvalidArgument for options out of range, calls in a wrong order, sparse gradients, and gradients in float16
//   (keep trained parameters in float32, or step a fused optimizer without unscale_()).
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
  // The factor of the scale after growth_interval steps without an Inf or NaN; above 1.
  double growth_factor = 2;
  // The factor of the scale after a step with an Inf or NaN; between 0 and 1.
  double backoff_factor = 0.5;
  // The number of steps after which the scale grows; at least 1.
  std::int64_t growth_interval = 2000;
  // Whether the scaler works. False: scale() and step() act as without a scaler, the other calls do nothing.
  bool enabled = true;
};

class LOCKSTEP_API GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  // Returns loss * scale, in float32 at least; its backward gives scaled gradients.
  at::Tensor scale(const at::Tensor& loss) const;
  // Divides the gradients of the optimizer's parameters by the scale, in place. Once between two update()s.
  void unscale_(::torch::optim::Optimizer& optimizer);
  // Runs optimizer.step() on unscaled gradients, or leaves it out if one of them is Inf or NaN. Once between two
  // update()s. Returns found_inf, a float32 scalar on the gradients' device: not 0 if the step was left out.
  at::Tensor step(::torch::optim::Optimizer& optimizer);
  // Sets the scale of the next steps. Call it after the steps of all optimizers.
  void update();
  // Sets the scale of the next steps to `new_scale`.
  void update(double new_scale);

  // The scale and its growth, for a snapshot (libtorch/snapshots.h). set_state() throws InvalidArgument for a scale
  // that is not above 0 and finite.
  struct State {
    double scale = 0;
    std::int64_t growth_tracker = 0;
  };
  State state() const { return read(tensors_); }
  void set_state(const State& state);
  // The tensors that state() reads. tensors() waits for nothing; read() waits, and returns the state at the call of
  // tensors().
  struct Tensors {
    at::Tensor scale;           // float32 scalar
    at::Tensor growth_tracker;  // int64 scalar: steps without an Inf or NaN since the scale changed
  };
  Tensors tensors() const { return tensors_; }
  static State read(const Tensors& tensors);

  double get_scale() const { return options_.enabled ? state().scale : 1; }
  const GradScalerOptions& options() const { return options_; }

  // Writes and reads scale and growth_tracker: torch's state_dict(), under its names.
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
  // On the CPU until scale() has seen a loss. Never written in place: a backward may hold these tensors.
  mutable Tensors tensors_;
  std::map<const ::torch::optim::Optimizer*, Seen> seen_;
};

}  // namespace lockstep::libtorch
