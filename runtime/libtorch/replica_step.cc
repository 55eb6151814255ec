// A replica's step: from the first gradient of a backward until all have been averaged, or until it is given up.
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>

#include <exception>

#include "runtime/base/error.h"
#include "runtime/libtorch/replica.h"

namespace lockstep::torch {

// Queued in the engine for the end of a backward. One that goes without having been called belonged to a backward that
// an exception has ended.
struct Replica::End {
  explicit End(std::weak_ptr<Replica> the_replica) : replica(std::move(the_replica)) {}
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() {
    if (was_called) return;
    if (const auto self = replica.lock()) self->end_lost();
  }

  std::weak_ptr<Replica> replica;
  bool was_called = false;
};

bool Replica::needs_no_arena() const {
  return group_->size() == 1 && no_sync_ == 0 && !(reducer_ && reducer_->accumulating());
}

// The callback belongs to the backward that the user called, not to one that runs within it.
void Replica::await_end() {
  if (!end_.expired()) return;
  passed_outputs_ = false;
  const auto end = std::make_shared<End>(weak_from_this());
  end_ = end;
  ::torch::autograd::Engine::get_default_engine().queue_callback([end] {
    end->was_called = true;
    if (const auto self = end->replica.lock()) self->end();
  });
}

void Replica::begin() {
  if (!weight_->has_value()) {
    throw InvalidArgument(
        "DistributedDataParallel: a gradient without a weight: no forward went through this object, or its arguments "
        "hold no tensor to count rows of; call set_weight() between forward and backward");
  }
  if (options_.weigh_outputs && !passed_outputs_ && **weight_ > 0 && group_->size() > 1) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: step {} has a gradient that came through no output that is seen, so that "
                    "the weight is not in it; set DdpOptions::weigh_outputs to false, or let forward return tensors, "
                    "alone or in containers",
                    steps_));
  }
  group_->progress();  // notices a group that has failed
  stream_ = current_stream(group_->device());
  synchronize_ = no_sync_ == 0;
  alone_ = needs_no_arena();
  // For each call of the Reducer's alone: the stream goes with its program, and a backward may have several replicas.
  const OnStream ordered(*group_, stream_);
  if (!alone_) {
    Reducer& reducer = planned_reducer();
    const StepNote note = synchronize_ ? divergence_->note(steps_) : StepNote{};
    reducer.begin_step({.weight = **weight_, .synchronize = synchronize_, .note = note});
    for (Parameter& parameter : parameters_) parameter.taken = false;
  }
  in_step_ = true;
  if (alone_) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].declared_unused) reducer_->mark_unused(static_cast<int>(i));
  }
}

void Replica::on_gradient(std::size_t index) {
  await_end();
  try {
    if (!in_step_) begin();
    if (!alone_ && overlap_) take(parameters_[index], static_cast<int>(index));
  } catch (const std::exception& error) {
    last_failure_ = error.what();
    throw;
  }
}

void Replica::take(Parameter& parameter, int index) {
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  if (!gradient.defined()) return;
  check_gradient(parameter);
  // Autograd has a stream for each parameter, that in which it was wrapped, and it need not be the step's.
  const StreamView here = current_stream(group_->device());
  order(stream_, here);
  put_into_arena(parameter);
  order(here, stream_);
  parameter.taken = true;
  const OnStream ordered(*group_, stream_);
  reducer_->mark_ready(index);
}

void Replica::put_into_arena(Parameter& parameter) {
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  const at::Tensor& view = parameter.view;
  const bool in_place = lies_in_arena(parameter);
  const std::int64_t weight = options_.weigh_outputs && **weight_ > 0 ? 1 : **weight_;
  const double factor = static_cast<double>(weight) / static_cast<double>(reducer_->weight_unit());
  if (reducer_->accumulating()) {
    // Without rows a mean may be NaN: then nothing is added.
    if (weight > 0) view.add_(gradient, factor);
  } else if (weight == 0) {
    view.zero_();
  } else if (factor == 1) {
    if (!in_place) view.copy_(gradient);
  } else if (in_place) {
    view.mul_(factor);
  } else {
    at::Tensor out = view;
    at::mul_out(out, gradient, at::scalar_tensor(factor, at::kDouble));
  }
  // A sum that is not closed yet is no gradient: it has no meaning before it is divided.
  gradient = synchronize_ ? view : at::Tensor();
}

void Replica::order(StreamView earlier, StreamView later) {
  if (earlier == later) return;
  mark_->record(earlier);
  mark_->block(later);
}

void Replica::end() {
  end_.reset();
  if (!in_step_) return;  // nothing of this module's got a gradient
  in_step_ = false;
  if (alone_) return end_alone();
  try {
    end_with_arena();
  } catch (const std::exception& error) {
    is_half_done_ = group_->size() > 1;
    reducer_->abandon_step(error.what());
    throw;
  }
  if (!synchronize_) return;
  const OnCurrentStream ordered(*group_);
  divergence_->judge(steps_ - 1, reducer_->noted());
}

void Replica::end_with_arena() {
  // Gradients that are there although this backward made none are of an earlier step: nobody has zeroed them.
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (!parameter.taken && !parameter.declared_unused) take(parameter, static_cast<int>(i));
  }
  {
    const OnStream ordered(*group_, stream_);
    last_weight_ = reducer_->finish_step();
  }
  // Here torch's current stream is that of whoever called backward.
  order(stream_, current_stream(group_->device()));
  if (!synchronize_) return;
  ++steps_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_used(i)) continue;  // as torch leaves what no loss depends on
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (!gradient.is_same(parameters_[i].view)) gradient = parameters_[i].view;
  }
}

bool Replica::is_used(std::size_t index) const {
  const Parameter& parameter = parameters_[index];
  if (!mark_) return reducer_->used_anywhere(static_cast<int>(index));
  return parameter.taken || (!parameter.declared_unused && reducer_->used_anywhere(static_cast<int>(index)));
}

void Replica::end_alone() {
  last_weight_ = **weight_;
  ++steps_;
  if (last_weight_ > 0) return;
  // A mean over no rows may be NaN.
  for (const Parameter& parameter : parameters_) {
    if (parameter.tensor.grad().defined()) parameter.tensor.grad().zero_();
  }
}

void Replica::end_lost() noexcept {
  MutexLock lock(lost_);
  if (!in_step_) return;
  in_step_ = false;
  // One of the user's own is not known here: the engine has it.
  if (last_failure_.empty()) last_failure_ = "an exception ended its backward; that rank's output has it";
  if (alone_) return;
  is_half_done_ = group_->size() > 1;
  reducer_->abandon_step(last_failure_);
}

void Replica::step_without_data(const ::torch::nn::Module& module) {
  refuse_changed();
  refuse_norms(module);
  broadcast_buffers(module.is_training());
  *weight_ = 0;
  begin();
  end();
}

}  // namespace lockstep::torch
