// SPDX-License-Identifier: Apache-2.0
// A replica's step: from the first gradient of a backward until all have been averaged, or until it is given up.
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/comm/stop_latch.h"
#include "runtime/libtorch/replica_impl.h"

namespace lockstep::libtorch {

// Queued in the engine for the end of a backward. One that goes without having been called belonged to a backward that
// an exception has ended.
struct ReplicaImpl::End {
  explicit End(std::weak_ptr<ReplicaImpl> the_replica) : replica(std::move(the_replica)) {}
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() {
    if (was_called) return;
    if (const auto self = replica.lock()) self->end_lost();
  }

  std::weak_ptr<ReplicaImpl> replica;
  bool was_called = false;
};

bool ReplicaImpl::needs_no_arena() const {
  return group_->size() == 1 && !has_hook() && *no_sync_ == 0 && !(reducer_ && reducer_->accumulating());
}

// The callback belongs to the backward that the user called, not to one that runs within it.
void ReplicaImpl::await_end() {
  if (!end_.expired()) return;
  passed_outputs_ = false;
  const auto end = std::make_shared<End>(weak_from_this());
  end_ = end;
  ::torch::autograd::Engine::get_default_engine().queue_callback([end] {
    end->was_called = true;
    if (const auto self = end->replica.lock()) self->end();
  });
  awaits_end_ = true;
}

void ReplicaImpl::begin() {
  if (!weight_->has_value() || (weight_is_spent_ && !passed_outputs_)) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: a gradient without a weight, in step {}: no forward went through this "
                    "object since the last backward, or its arguments hold no tensor to count rows of; call ddp(x) "
                    "instead of the module's forward, or set_weight() between forward and backward",
                    steps_));
  }
  if (options_.weigh_outputs && options_.loss == Loss::mean && !passed_outputs_ && **weight_ > 0 &&
      group_->size() > 1) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: step {} has a gradient that came through no output that is seen, so that "
                    "the weight is not in it; set DdpOptions::weigh_outputs to false, or let forward return tensors, "
                    "alone or in containers",
                    steps_));
  }
  group_->progress();  // notices a group that has failed
  stream_ = current_stream(group_->device());
  synchronize_ = *no_sync_ == 0;
  alone_ = needs_no_arena();
  losses_.begin_backward(**weight_);
  if (synchronize_) losses_.close_step(steps_);
  if (alone_) stop_word_ = stop_word_of_step(*group_, steps_);
  // For each call of the Reducer's alone: the stream goes with its program, and a backward may have several replicas.
  const OnStream ordered(*group_, stream_);
  if (!alone_) {
    Reducer& reducer = planned_reducer();
    StepNote note = synchronize_ ? divergence_->note(steps_) : StepNote{};
    if (synchronize_ && group_->size() > 1) losses_.write(note, steps_);
    reducer.begin_step({.weight = **weight_, .synchronize = synchronize_, .note = note});
    for (Parameter& parameter : parameters_) parameter.taken = false;
  }
  in_step_ = true;
  if (alone_) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].declared_unused) reducer_->mark_unused(static_cast<int>(i));
  }
}

void ReplicaImpl::on_gradient(std::size_t index) {
  await_end();
  try {
    if (!in_step_) begin();
    if (!alone_ && overlap_) take(parameters_[index], static_cast<int>(index));
  } catch (...) {
    keep_failure("backward");
    throw;
  }
}

void ReplicaImpl::take(Parameter& parameter, int index) {
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  if (!gradient.defined()) return;
  check_gradient(parameter);
  parameter.had_gradient = lies_in_arena(parameter);
  // Autograd has a stream for each parameter, that in which it was wrapped, and it need not be the step's.
  const StreamView here = current_stream(group_->device());
  order(stream_, here);
  put_into_arena(parameter);
  order(here, stream_);
  parameter.taken = true;
  const OnStream ordered(*group_, stream_);
  reducer_->mark_ready(index);
}

void ReplicaImpl::put_into_arena(Parameter& parameter) {
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  const at::Tensor& view = parameter.view;
  const bool in_place = lies_in_arena(parameter);
  const double factor = this->factor();
  if (reducer_->accumulating()) {
    // Without rows a mean may be NaN: then nothing is added.
    if (factor > 0) view.add_(gradient, factor);
  } else if (factor == 0) {
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

double ReplicaImpl::factor() const {
  const bool has_weight_in_it = options_.weigh_outputs || options_.loss == Loss::sum;
  const std::int64_t weight = has_weight_in_it ? std::min<std::int64_t>(**weight_, 1) : **weight_;
  return static_cast<double>(weight) / static_cast<double>(reducer_->weight_unit());
}

void ReplicaImpl::order(StreamView earlier, StreamView later) {
  if (earlier == later) return;
  mark_->record(earlier);
  mark_->block(later);
}

void ReplicaImpl::end() {
  end_.reset();
  awaits_end_ = false;
  if (!in_step_) return;  // nothing of this module's got a gradient
  weight_is_spent_ = true;
  try {
    refuse_other_forward();
    alone_ ? end_alone() : end_with_arena();
  } catch (...) {
    keep_failure("backward");
    give_up();
    throw;
  }
  in_step_ = false;
  failure_.forget();
  if (group_->size() == 1) losses_.read_known(last_batch_);
  if (!synchronize_) return;
  if (!alone_) {
    const OnCurrentStream ordered(*group_);
    divergence_->judge(steps_ - 1, reducer_->noted());
  }
  if (before_update_) before_update_();
}

void ReplicaImpl::end_with_arena() {
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
  if (group_->size() > 1) {
    last_batch_ = losses_.batch_of(reducer_->noted());
    if (!mark_) last_weight_ = last_batch_.weight;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (is_used(i)) {
      if (!gradient.is_same(parameter.view)) gradient = parameter.view;
    } else if (parameter.taken && !parameter.had_gradient) {
      gradient = at::Tensor();  // torch leaves it so where no row depends on the parameter
    }
  }
}

bool ReplicaImpl::is_used(std::size_t index) const {
  const Parameter& parameter = parameters_[index];
  if (!mark_) return reducer_->used_anywhere(static_cast<int>(index));
  return (parameter.taken && **weight_ > 0) ||
         (!parameter.declared_unused && reducer_->used_anywhere(static_cast<int>(index)));
}

void ReplicaImpl::end_alone() {
  last_weight_ = **weight_;
  ++steps_;
  for (const Parameter& parameter : parameters_) {
    // A mean over no rows may be NaN.
    if (last_weight_ == 0 && parameter.tensor.grad().defined()) parameter.tensor.grad().zero_();
  }
  end_step(*group_, stop_word_, steps_ - 1);
}

void ReplicaImpl::keep_failure(std::string_view part) noexcept {
  failure_.keep(fmt::format("the {} of step {}", part, steps_), std::current_exception());
}

void ReplicaImpl::give_up() noexcept {
  if (std::exchange(in_step_, false) && group_->size() > 1) is_half_done_ = true;
  failure_.tell();
  losses_.forget(steps_);
  if (reducer_) reducer_->abandon_step(failure_.text());
}

void ReplicaImpl::end_lost() noexcept {
  MutexLock lock(lost_);
  if (!std::exchange(awaits_end_, false)) return;
  // One of the user's own is not known here: the engine has it.
  if (failure_.text().empty()) {
    failure_.keep(fmt::format("the backward of step {}", steps_),
                  "an exception of the program's own ended it, which that rank's output has");
  }
  give_up();
}

void ReplicaImpl::step_without_data(const ::torch::nn::Module& module) {
  refuse_changed();
  refuse_norms(module);
  broadcast_buffers(module.is_training());
  *weight_ = 0;
  weight_is_spent_ = false;
  has_outputs_ = false;
  try {
    begin();
  } catch (...) {
    keep_failure("backward");
    give_up();
    throw;
  }
  end();
}

}  // namespace lockstep::libtorch
