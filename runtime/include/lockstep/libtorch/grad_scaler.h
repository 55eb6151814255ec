// SPDX-License-Identifier: Apache-2.0
// GradScaler scales the loss for float16, like Python's torch.cuda.amp.GradScaler, with its defaults; LibTorch's C++
// has no scaler.
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
// Ranks: DistributedDataParallel gives every rank the same bits, so an Inf of one rank is in the gradients of all
// ranks, and all ranks skip the same step and keep the same scale. The scaler sends nothing, except for a
// ShardedOptimizer, with which unscale_(), or step() without unscale_(), is collective. Ranks may disagree about
// parameters that no group reduces.
//
// Threads: one thread at a time uses a scaler.
// Failure: calls throw InvalidArgument for options out of range, calls in a wrong order, sparse gradients, and
//   gradients in float16 (keep trained parameters in float32, or step a fused optimizer without unscale_()).
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
  // The factor of the scale after growth_interval steps without an Inf or NaN. The factor is above 1.
  double growth_factor = 2;
  // The factor of the scale after a step with an Inf or NaN. The factor is between 0 and 1.
  double backoff_factor = 0.5;
  // The number of steps without an Inf or NaN after which the scale grows; at least 1.
  std::int64_t growth_interval = 2000;
  // Whether the scaler works. If false, scale() and step() act as without a scaler, and the other calls do nothing.
  bool enabled = true;
};

// GradScaler scales the loss, and adapts the scale to the gradients.
//
// On a GPU the scale stays on the device. A fused optimizer (libtorch/fused_optimizers.h) reads the scale there, and
// the host never waits. For any other optimizer step() waits once, to know whether to call the optimizer's step().
// get_scale(), state() and save() wait too. bfloat16 has float32's range and needs no scaler.
class LOCKSTEP_API GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  // Returns loss * scale, in float32 at least. The backward of the result gives scaled gradients.
  at::Tensor scale(const at::Tensor& loss) const;
  // Divides the gradients of the optimizer's parameters by the scale, in place. Call unscale_() at most once between
  // two update()s.
  void unscale_(::torch::optim::Optimizer& optimizer);
  // Runs optimizer.step() on unscaled gradients, or skips the step if a gradient is Inf or NaN. Call step() once
  // between two update()s. Returns found_inf, a float32 scalar on the gradients' device, which is not 0 if the step
  // was skipped.
  at::Tensor step(::torch::optim::Optimizer& optimizer);
  // Sets the scale of the next steps. Call update() after the steps of all optimizers.
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
  // The tensors that state() reads. tensors() does not wait; read() waits, and returns the state at the call
  // of tensors().
  struct Tensors {
    at::Tensor scale;           // float32 scalar
    at::Tensor growth_tracker;  // int64 scalar: steps without an Inf or NaN since the scale changed
  };
  Tensors tensors() const { return tensors_; }
  static State read(const Tensors& tensors);

  double get_scale() const { return options_.enabled ? state().scale : 1; }
  const GradScalerOptions& options() const { return options_; }

  // save() writes scale and growth_tracker under the names of torch's state_dict(), and load() reads them.
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
  // The tensors are on the CPU until scale() has seen a loss. The scaler never writes the tensors in place, because a
  // backward may hold them.
  mutable Tensors tensors_;
  std::map<const ::torch::optim::Optimizer*, Seen> seen_;
};

}  // namespace lockstep::libtorch
