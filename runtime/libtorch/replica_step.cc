// SPDX-License-Identifier: Apache-2.0
// A replica's step: from the first gradient of a backward until all have been averaged, or until it is given up.
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/libtorch/replica_impl.h"
#include "runtime/trace/process_trace.h"

namespace lockstep::libtorch {

// The callback that is queued in the engine for the end of a backward. If it is destroyed without having been called,
// an exception has ended that backward.
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
  return group_->size() == 1 && !always_needs_arena() && !trainer_->is_in_no_sync() && !trainer_->accumulating();
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
  unreached_.reset();
  writes_without_backward_ = 0;
  forwards_without_step_.reset();
  refuse_thawed_or_converted();
  refuse_without_shards();
  refuse_without_sharded_optimizer();
  refuse_without_weight();
  if (options_.weigh_outputs && options_.loss == Loss::mean && !passed_outputs_ && **trainer_->weight() > 0 &&
      group_->size() > 1) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: step {} has a gradient that came through no output that is seen, so that "
                    "the weight is not in it; set DdpOptions::weigh_outputs to false, or let forward return tensors, "
                    "alone or in containers",
                    trainer_->step()));
  }
  if (trainer_->shard()) refuse_written_buffers();
  trainer_->tell_of_adding();
  group_->progress();  // notices a group that has failed
  stream_ = current_stream(group_->device());
  has_shares_ = false;
  const bool is_alone = needs_no_arena();
  // For each call of the Reducer's alone: the stream goes with its program, and a backward may have several replicas.
  const OnStream ordered(*group_, stream_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    parameter.taken = false;
    parameter.is_set_aside = false;
    parameter.is_used = false;
    parameter.had_gradient = parameter.had_gradient && trainer_->accumulating();
    // A zero_grad() of torch's class, which knows shares alone.
    if (!gradient_that_tells(i).defined()) parameter.tensor.mutable_grad().reset();
  }
  if (!is_alone) planned_reducer();
  trainer_->begin(is_alone);
}

void ReplicaImpl::before_gradient(std::size_t index, bool has_gradient) {
  if (in_capture_) return;
  await_end();
  try {
    if (!trainer_->in_step()) begin();
    if (has_gradient) trainer_->require_used(static_cast<int>(index));
    parameters_[index].is_used |= has_gradient;
    // A mean over no rows, which may be NaN, goes nowhere.
    if (!trainer_->is_alone() || **trainer_->weight() == 0) stash_grad(parameters_[index]);
  } catch (...) {
    trainer_->keep_failure("backward");
    throw;
  }
}

void ReplicaImpl::on_gradient(std::size_t index) {
  if (in_capture_ && (needs_no_arena() || !overlap_)) return;
  if (in_capture_) return take(parameters_[index], static_cast<int>(index));
  if (!trainer_->is_alone() && !overlap_) return;
  try {
    if (trainer_->is_alone()) return look_at_gradient(parameters_[index]);
    take(parameters_[index], static_cast<int>(index));
  } catch (...) {
    trainer_->keep_failure("backward");
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
  // The optimizer writes the parameters next, and an evaluation may come after it.
  at::autocast::clear_cache();
  if (!trainer_->in_step()) return;  // nothing of this module's got a gradient
  trainer_->spend_weight();
  try {
    refuse_other_forward();
    if (trainer_->is_alone()) {
      restore_alone();
      trainer_->finish(backward_began_);
    } else {
      end_with_arena();
    }
  } catch (...) {
    trainer_->keep_failure("backward");
    give_up();
    throw;
  }
  trace::keep_span(trace::SpanKind::backward, backward_began_, trace::Time::clock::now());
  const OnCurrentStream ordered(*group_);
  trainer_->close();
}

void ReplicaImpl::end_with_arena() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (parameter.taken || trainer_->is_declared_unused(static_cast<int>(i))) continue;
    stash_grad(parameter);  // the gradient in .grad, which this backward did not make
    take(parameter, static_cast<int>(i));
  }
  {
    const OnStream ordered(*group_, stream_);
    trainer_->finish();
  }
  // Here torch's current stream is that of the thread that called backward.
  order(stream_, current_stream(group_->device()));
  if (!trainer_->is_synchronized()) return;
  // Torch leaves .grad undefined where no row depends on the parameter.
  for (const at::Tensor& share : shares_) share.mutable_grad().reset();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    // Beside an earlier gradient the answer is not worth a device's wait.
    parameter.is_used = mark_ && parameter.had_gradient ? parameter.was_used : is_used(i);
    if (!parameter.had_gradient && !parameter.is_used) continue;
    is_sharded() ? give_share(parameter) : restore_grad(parameter);
  }
  tell_of_unused();
  has_shares_ = is_sharded();
}

void ReplicaImpl::tell_of_unused() {
  if (unused_are_told_ || std::ranges::none_of(parameters_, &Parameter::is_used)) return;  // or no rank has rows
  std::vector<std::string> names;
  for (Parameter& parameter : parameters_) {
    if (parameter.was_used && !parameter.is_used) names.push_back("'" + parameter.name + "'");
    parameter.was_used |= parameter.is_used;
  }
  if (names.empty() || group_->rank() != 0) return;
  unused_are_told_ = true;
  const std::size_t shown = std::min<std::size_t>(names.size(), 4);
  log_warn(
      "DistributedDataParallel: in step {} no rank's loss depends on {}{}, which had gradients in earlier steps. If "
      "that is not meant, look for detach() and NoGradGuard, and evaluate outside of the Autocast scope in which you "
      "train, for autocast keeps casts without a graph. This is logged once",
      trainer_->step(), fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
      names.size() > shown ? fmt::format(" and {} more parameters", names.size() - shown) : "");
}

bool ReplicaImpl::is_used(std::size_t index) const {
  const Parameter& parameter = parameters_[index];
  const auto number = static_cast<int>(index);
  if (!mark_) return trainer_->reducer()->used_anywhere(number);
  return (parameter.taken && **trainer_->weight() > 0) ||
         (!trainer_->is_declared_unused(number) && trainer_->reducer()->used_anywhere(number));
}

void ReplicaImpl::restore_alone() {
  for (Parameter& parameter : parameters_) {
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (parameter.before.defined()) {
      gradient = std::exchange(parameter.before, {});
    } else if (parameter.is_set_aside && gradient.defined()) {
      gradient.zero_();
    }
  }
  tell_of_unused();
}

void ReplicaImpl::give_up() noexcept {
  for (Parameter& parameter : parameters_) {
    if (parameter.before.defined()) parameter.tensor.mutable_grad() = std::exchange(parameter.before, {});
  }
  if (trainer_->in_step() && group_->size() > 1) is_half_done_ = true;
  trainer_->give_up();
}

void ReplicaImpl::end_lost(const End& end) noexcept {
  MutexLock lock(lost_);
  if (awaited_ != &end) return;  // settled
  awaited_ = nullptr;
  is_lost_ = mark_.has_value();
  trainer_->tell_of_lost_backward();
  if (!is_lost_) give_up();
}

void ReplicaImpl::settle_lost() noexcept {
  MutexLock lock(lost_);
  // A forward within the backward, as of a checkpoint, is of a step that is not over.
  if (awaited_ != nullptr && ::torch::autograd::get_current_graph_task_nodes_in_graph() == nullptr) {
    awaited_ = nullptr;
    is_lost_ = true;
    trainer_->tell_of_lost_backward();
  }
  give_up_lost();
}

void ReplicaImpl::give_up_lost() noexcept {
  if (!std::exchange(is_lost_, false)) return;
  // The program may have cleared its gradients since: those of earlier steps don't come back.
  for (Parameter& parameter : parameters_) parameter.before = at::Tensor();
  give_up();
}

void ReplicaImpl::step_without_data(const ::torch::nn::Module& module) {
  if (!options_.reproducible.is_on()) return run_without_data(module);
  trainer_->spend_weight();
  for (const StepShard& shard : begin_shards(0)) begin_shard(module, shard);
}

void ReplicaImpl::run_without_data(const ::torch::nn::Module& module) {
  enter(module);
  refuse_norms(module);
  broadcast_buffers(module.is_training());
  trainer_->spend_weight();
  try {
    trainer_->begin_forward(0);
  } catch (...) {
    forward_failed(false);
    throw;
  }
  has_outputs_ = false;
  try {
    backward_began_ = trace::Time::clock::now();
    begin();
  } catch (...) {
    trainer_->keep_failure("backward");
    give_up();
    throw;
  }
  end();
}

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
