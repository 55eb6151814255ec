// SPDX-License-Identifier: Apache-2.0
// A replica's part in a captured step: what a graph computes, and what the host does around each replay.
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "lockstep/base/error.h"
#include "runtime/libtorch/replica_impl.h"

namespace lockstep::libtorch {

// Torch accumulates a gradient in the stream that was current when the accumulator was made. The default stream, in
// which programs wrap their modules, can't be captured.
void ReplicaImpl::accumulate_here() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    unhook(parameter);
    accumulators_.erase(parameter.accumulator.get());
    parameter.accumulator.reset();
    const auto is_held = static_cast<bool>(::torch::autograd::impl::try_get_grad_accumulator(parameter.tensor));
    hook(i);
    if (!is_held) continue;
    throw InvalidArgument(
        fmt::format("CapturedStep: a graph holds the accumulator of '{}', in a stream that can't be captured; make the "
                    "CapturedStep before the first forward, or let go of the losses and outputs of earlier ones",
                    parameter.name));
  }
}

void ReplicaImpl::begin_step() {
  if (options_.weigh_outputs || options_.reproducible.is_on() || is_sharded() || trainer_->is_in_no_sync() ||
      trainer_->accumulating()) {
    throw InvalidArgument(fmt::format(
        "CapturedStep: step {} is in no_sync(), or behind its micro-batches, or DdpOptions has weigh_outputs "
        "or reproducible or shard; a captured step is one backward, weighed on the device: take larger batches "
        "instead, and leave these options out",
        trainer_->step()));
  }
  for (const Parameter& parameter : parameters_) parameter.tensor.mutable_grad() = at::Tensor();
  // A graph would read the casts of an outer autocast scope, made outside of its memory, after they are freed.
  at::autocast::clear_cache();
}

// On a device torch's threads run the backward, and begin it after this one has written in_capture_.
at::Tensor ReplicaImpl::compute_captured(const std::function<at::Tensor()>& loss_of) {
  const std::shared_ptr<void> leave(nullptr, [this](void*) { in_capture_ = false; });
  in_capture_ = true;
  refuse_without_weight();
  stream_ = current_stream(group_->device());
  begin_step();
  for (Parameter& parameter : parameters_) parameter.taken = false;
  const at::Tensor loss = loss_of();
  loss.backward();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (!needs_no_arena()) take(parameter, static_cast<int>(i));  // those that on_gradient() has not taken
    parameter.captured =
        parameter.taken ? parameter.view : std::exchange(parameter.tensor.mutable_grad(), at::Tensor());
  }
  return loss.detach();
}

void ReplicaImpl::before_replay(const ::torch::nn::Module& module, std::optional<std::int64_t> rows,
                                std::optional<std::int64_t> weight) {
  before_forward(module, rows);
  if (weight) trainer_->set_weight(*weight);
  has_outputs_ = false;  // no backward will come through them
  if (needs_no_arena() || !trainer_->has_weight()) return;
  if (!scale_.defined()) scale_ = at::empty({}, at::TensorOptions().dtype(at::kDouble).device(device_of(*group_)));
  scale_.fill_(factor());
}

void ReplicaImpl::after_replay() {
  backward_began_ = trace::Time::clock::now();
  try {
    begin();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& parameter = parameters_[i];
      if (!parameter.captured.defined()) continue;
      // A mean over no rows may be NaN.
      if (**trainer_->weight() == 0) parameter.captured.zero_();
      parameter.is_used = true;
      parameter.taken = !trainer_->is_alone();
      if (parameter.taken) {
        const OnStream ordered(*group_, stream_);
        trainer_->reducer()->mark_ready(static_cast<int>(i));
      } else {
        parameter.tensor.mutable_grad() = parameter.captured;
        look_at_gradient(parameter);
      }
    }
  } catch (...) {
    trainer_->keep_failure("backward");
    give_up();
    throw;
  }
  end();
}

}  // namespace lockstep::libtorch
