// SPDX-License-Identifier: Apache-2.0
// A replica's step: from the first gradient of a backward until all have been averaged, or until it is given up.
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/comm/group_internals.h"
#include "runtime/comm/stop_latch.h"
#include "runtime/ddp/unused.h"
#include "runtime/libtorch/replica_impl.h"
#include "runtime/trace/process_trace.h"

namespace lockstep::libtorch {

// Queued in the engine for the end of a backward. One that goes without having been called belonged to a backward that
// an exception has ended.
struct ReplicaImpl::End {
  explicit End(std::weak_ptr<ReplicaImpl> the_replica) : replica(std::move(the_replica)) {}
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() {
    if (was_called) return;
    if (const auto self = replica.lock()) self->end_lost(*this);
  }

  std::weak_ptr<ReplicaImpl> replica;
  bool was_called = false;
};

bool ReplicaImpl::needs_no_arena() const {
  return group_->size() == 1 && !always_needs_arena() && *no_sync_ == 0 && !(reducer_ && reducer_->accumulating());
}

// The callback belongs to the backward that the user called, not to one that runs within it.
void ReplicaImpl::await_end() {
  {
    MutexLock lock(lost_);
    if (awaited_ != nullptr) return;
    give_up_lost();
  }
  passed_outputs_ = false;
  backward_began_ = trace::Time::clock::now();
  const auto end = std::make_shared<End>(weak_from_this());
  ::torch::autograd::Engine::get_default_engine().queue_callback([end] {
    end->was_called = true;
    if (const auto self = end->replica.lock()) self->end();
  });
  MutexLock lock(lost_);
  awaited_ = end.get();
}

void ReplicaImpl::begin() {
  refuse_thawed_or_converted();
  refuse_without_shards();
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
  if (shard_) {
    if (!weights_are_told_) require_rows_of_shard(*shard_, **weight_);
    refuse_written_buffers();
  }
  tell_of_adding();    // first: on every rank, whoever comes to it
  group_->progress();  // notices a group that has failed
  stream_ = current_stream(group_->device());
  synchronize_ = synchronizes();
  alone_ = needs_no_arena();
  losses_.begin_backward(**weight_);
  if (synchronize_) losses_.close_step(steps_);
  if (alone_) stop_word_ = stop_word_of_step(*group_, steps_);
  // For each call of the Reducer's alone: the stream goes with its program, and a backward may have several replicas.
  const OnStream ordered(*group_, stream_);
  const bool is_accumulating = reducer_ && reducer_->accumulating();
  for (Parameter& parameter : parameters_) {
    parameter.taken = false;
    parameter.is_set_aside = false;
    parameter.had_gradient = parameter.had_gradient && is_accumulating;
  }
  if (!alone_) {
    Reducer& reducer = planned_reducer();
    StepNote note = synchronize_ ? divergence_->note(steps_) : StepNote{};
    if (synchronize_ && group_->size() > 1) losses_.write(note, steps_);
    reducer.begin_step({.weight = **weight_, .synchronize = synchronize_, .note = note});
  }
  in_step_ = true;
  if (alone_) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].declared_unused) reducer_->mark_unused(static_cast<int>(i));
  }
}

void ReplicaImpl::before_gradient(std::size_t index, bool has_gradient) {
  await_end();
  try {
    if (!in_step_) begin();
    const Parameter& parameter = parameters_[index];
    if (has_gradient && parameter.declared_unused) refuse_gradient_of_unused(parameter.name, steps_);
    // A mean over no rows, which may be NaN, goes nowhere.
    if (!alone_ || **weight_ == 0) set_aside(parameters_[index]);
  } catch (...) {
    keep_failure("backward");
    throw;
  }
}

void ReplicaImpl::on_gradient(std::size_t index) {
  if (!alone_ && !overlap_) return;
  try {
    if (alone_) return look_at_gradient(parameters_[index]);
    take(parameters_[index], static_cast<int>(index));
  } catch (...) {
    keep_failure("backward");
    throw;
  }
}

void ReplicaImpl::order(StreamView earlier, StreamView later) {
  if (earlier == later) return;
  mark_->record(earlier);
  mark_->block(later);
}

void ReplicaImpl::end() {
  {
    MutexLock lock(lost_);
    awaited_ = nullptr;
  }
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
  trace::keep_span(trace::SpanKind::backward, backward_began_, trace::Time::clock::now());
  if (group_->size() == 1) losses_.read_known(last_batch_);
  if (!synchronize_) return;
  trace::keep_batch(last_batch_.step, last_batch_.weight, last_batch_.loss);
  if (!alone_) {
    const OnCurrentStream ordered(*group_);
    divergence_->judge(steps_ - 1, reducer_->noted());
  }
  versions_ = versions();
  if (before_update_) before_update_();
}

void ReplicaImpl::end_with_arena() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (parameter.taken || parameter.declared_unused) continue;
    set_aside(parameter);  // what is there although this backward made none
    take(parameter, static_cast<int>(i));
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
  // Torch leaves .grad undefined where no row depends on the parameter.
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].had_gradient || is_used(i)) give_back(parameters_[i]);
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
  const trace::Time now = trace::Time::clock::now();
  trace::keep_step({.step = steps_, .begin = backward_began_, .last_gradient_ready = now, .end = now, .buckets = {}},
                   false);
  ++steps_;
  for (Parameter& parameter : parameters_) {
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (parameter.before.defined()) {
      gradient = std::exchange(parameter.before, {});
    } else if (parameter.is_set_aside && gradient.defined()) {
      gradient.zero_();
    }
  }
  end_step(*group_, stop_word_, steps_ - 1);
  const std::int64_t done = group_->internals().stop_latch()->steps_done();
  trace::keep_steps_done(done, done - steps_);
}

void ReplicaImpl::keep_failure(std::string_view part, std::int64_t step) noexcept {
  failure_.keep(fmt::format("the {} of step {}", part, step), std::current_exception());
}

void ReplicaImpl::give_up() noexcept {
  for (Parameter& parameter : parameters_) {
    if (parameter.before.defined()) parameter.tensor.mutable_grad() = std::exchange(parameter.before, {});
  }
  if (std::exchange(in_step_, false) && group_->size() > 1) is_half_done_ = true;
  failure_.tell();
  losses_.forget(steps_);
  if (reducer_) reducer_->abandon_step(failure_.text());
}

void ReplicaImpl::end_lost(const End& end) noexcept {
  MutexLock lock(lost_);
  if (awaited_ != &end) return;  // settled
  awaited_ = nullptr;
  is_lost_ = mark_.has_value();
  tell_of_lost();
  if (!is_lost_) give_up();
}

void ReplicaImpl::settle_lost() noexcept {
  MutexLock lock(lost_);
  // A forward within the backward, as of a checkpoint, is of a step that is not over.
  if (awaited_ != nullptr && ::torch::autograd::get_current_graph_task_nodes_in_graph() == nullptr) {
    awaited_ = nullptr;
    is_lost_ = true;
    tell_of_lost();
  }
  give_up_lost();
}

void ReplicaImpl::give_up_lost() noexcept {
  if (!std::exchange(is_lost_, false)) return;
  // The program may have cleared its gradients since: those of earlier steps don't come back.
  for (Parameter& parameter : parameters_) parameter.before = at::Tensor();
  give_up();
}

void ReplicaImpl::tell_of_lost() noexcept {
  // One of the user's own is not known here: the engine has it.
  if (failure_.text().empty()) {
    failure_.keep(fmt::format("the backward of step {}", steps_),
                  "an exception of the program's own ended it, which that rank's output has");
  }
  failure_.tell();
}

void ReplicaImpl::step_without_data(const ::torch::nn::Module& module) {
  if (!options_.reproducible.is_on()) return run_without_data(module);
  for (const StepShard& shard : begin_shards(0)) begin_shard(module, shard);
}

void ReplicaImpl::run_without_data(const ::torch::nn::Module& module) {
  enter(module);
  refuse_norms(module);
  broadcast_buffers(module.is_training());
  *weight_ = 0;
  weight_is_spent_ = false;
  has_outputs_ = false;
  try {
    backward_began_ = trace::Time::clock::now();
    begin();
  } catch (...) {
    keep_failure("backward");
    give_up();
    throw;
  }
  end();
}

}  // namespace lockstep::libtorch
