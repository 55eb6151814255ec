// SPDX-License-Identifier: Apache-2.0
#include "runtime/libtorch/replica_engine.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/libtorch/autograd_graph.h"
#include "runtime/trace/process_trace.h"

namespace lockstep::libtorch {

// So many forwards may be in one loss, as of an episode.
constexpr int kManyForwards = 1000;

// The callback that is queued in the engine for the end of a backward. If it is destroyed without having been called,
// an exception has ended that backward.
struct ReplicaEngine::End {
  explicit End(std::weak_ptr<ReplicaEngine> the_replica) : replica(std::move(the_replica)) {}
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() {
    if (was_called) return;
    if (const auto live = replica.lock()) live->end_lost(*this);
  }

  std::weak_ptr<ReplicaEngine> replica;
  bool was_called = false;
};

ReplicaEngine::ReplicaEngine(const ::torch::nn::Module& module, std::shared_ptr<ProcessGroup> given_group,
                             const DdpOptions& given)
    : TrainedModule(module, std::move(given_group), given),
      gradients_(parameters().size()),
      stream_(current_stream(group->device())) {
  for (std::size_t i = 0; i < gradients_.size(); ++i) gradients_[i].strides = gradient_strides(tensor(i));
  if (group->device().kind != DeviceKind::cpu) {
    mark_.emplace(group->device());
  } else if (group->size() == 1 && options.not_finite != NotFinite::ignore) {
    wrong_.emplace(options.not_finite, group);
  }
}

void ReplicaEngine::enter() {
  settle_lost();
  refuse_changed();
}

void ReplicaEngine::before_forward() {
  trains_ = is_training();
  if (!trains_ || !unreached_) return;
  const std::uint64_t now = trained_versions();
  writes_without_backward_ = std::exchange(*unreached_, now) == now ? 0 : writes_without_backward_ + 1;
  if (writes_without_backward_ < 3) return;
  throw InvalidArgument(fmt::format(
      "DistributedDataParallel: in step {} weights were written after each of the last {} forwards that train, and no "
      "backward() reached a parameter: gradients of torch::autograd::grad are not averaged, so that the replicas come "
      "apart. Call backward() on the loss; where each rank's weights are to be its own, or the program averages, call "
      "the module's own forward, and evaluate in eval() or under NoGradGuard",
      trainer.step(), writes_without_backward_));
}

void ReplicaEngine::after_forward(std::span<at::Tensor* const> outputs) {
  if (!at::GradMode::is_enabled()) return;
  std::vector<at::Tensor> roots;
  for (const at::Tensor* output : outputs) {
    if (output->defined()) roots.push_back(*output);
  }
  has_outputs_ = std::ranges::any_of(roots, &at::Tensor::requires_grad);
  is_differentiable_ = false;
  if (trains_ && has_outputs_) {
    if (group->size() > 1) unreached_ = trained_versions();
    if (forwards_without_step_ && ++*forwards_without_step_ == kManyForwards) tell_of_no_backward();
  }
  // With shares the order is fixed: an optimizer's state belongs to a share.
  if (order_.empty() && !shares.are_cut()) order_ = graph_order(roots, numbers());
  for (at::Tensor* output : outputs) {
    *output = behind_boundary(*output, [weak = weak_from_this()] {
      const auto live = weak.lock();
      return live ? live->on_output() : 1;
    });
  }
}

void ReplicaEngine::tell_of_no_backward() const {
  if (group->rank() != 0) return;
  log_warn(
      "DistributedDataParallel: {} forwards that train, and no backward() has reached a parameter: is the loss cut off "
      "from ddp's outputs (detach(), NoGradGuard), or backward() left out? Evaluate in eval() or under NoGradGuard. "
      "This is logged once",
      *forwards_without_step_);
}

double ReplicaEngine::on_output() {
  if (on_captured) return 1;
  await_end();
  passed_outputs_ = true;
  is_differentiable_ |= at::GradMode::is_enabled();
  const bool weigh = options.weigh_outputs && options.loss == Loss::mean && !needs_no_arena();
  return weigh ? static_cast<double>(trainer.weight()->value_or(1)) : 1;
}

// The callback belongs to the backward that the user called, not to one that runs within it.
void ReplicaEngine::await_end() {
  {
    MutexLock lock(lost_);
    if (awaited_ != nullptr) return;
    give_up_lost();
  }
  passed_outputs_ = false;
  began_ = trace::Time::clock::now();
  const auto end = std::make_shared<End>(weak_from_this());
  ::torch::autograd::Engine::get_default_engine().queue_callback([end] {
    end->was_called = true;
    if (const auto live = end->replica.lock()) live->end();
  });
  MutexLock lock(lost_);
  awaited_ = end.get();
}

void ReplicaEngine::begin() {
  unreached_.reset();
  writes_without_backward_ = 0;
  forwards_without_step_.reset();
  refuse_thawed_or_converted();
  repeatable.refuse_other_backward();
  shares.refuse_unclaimed();
  refuse_without_weight();
  refuse_unweighted();
  repeatable.refuse_written_buffers();
  // In this order: if progress() finds the group's failure, which ranks may see at different times, all of them have
  // run the action.
  trainer.tell_of_adding();
  group->progress();  // notices a group that has failed
  begin_gradients();
  shares.set_has_means(false);
  const bool is_alone = needs_no_arena();
  // For each call of the Reducer's alone: the stream goes with its program, and a backward may have several replicas.
  const OnStream ordered(*group, stream_);
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    gradients_[i].is_used = false;
    // A zero_grad() of torch's class, which knows shares alone.
    if (!shares.gradient_that_tells(i).defined()) tensor(i).mutable_grad().reset();
  }
  if (!is_alone) plan();
  trainer.begin(is_alone);
}

void ReplicaEngine::begin_gradients() {
  stream_ = current_stream(group->device());
  for (Gradient& gradient : gradients_) {
    gradient.is_taken = gradient.is_set_aside = false;
    gradient.had_gradient = gradient.had_gradient && trainer.accumulating();
  }
}

void ReplicaEngine::before_gradient(std::size_t index, bool has_gradient) {
  if (on_captured) return;
  await_end();
  try {
    if (!trainer.in_step()) begin();
    if (has_gradient) trainer.require_used(static_cast<int>(index));
    gradients_[index].is_used |= has_gradient;
    // A mean over no rows, which may be NaN, goes nowhere.
    if (!trainer.is_alone() || **trainer.weight() == 0) set_aside(index);
  } catch (...) {
    trainer.keep_failure("backward");
    throw;
  }
}

void ReplicaEngine::on_gradient(std::size_t index) {
  if (on_captured) {
    if (overlap_) on_captured(index);
    return;
  }
  try {
    if (trainer.is_alone()) {
      look_at(index);
    } else if (overlap_) {
      take(index);
    }
  } catch (...) {
    trainer.keep_failure("backward");
    throw;
  }
}

void ReplicaEngine::run(const std::function<void()>& bring) {
  began_ = trace::Time::clock::now();
  try {
    begin();
    bring();
  } catch (...) {
    fail();
    throw;
  }
  end();
}

void ReplicaEngine::end() {
  {
    MutexLock lock(lost_);
    awaited_ = nullptr;
  }
  // The optimizer writes the parameters next, and an evaluation may come after it.
  at::autocast::clear_cache();
  if (!trainer.in_step()) return;  // nothing of this module's got a gradient
  trainer.spend_weight();
  try {
    refuse_other_forward();
    if (trainer.is_alone()) {
      restore_alone();
      tell_of_unused();
      trainer.finish(began_);
    } else {
      end_with_arena();
    }
  } catch (...) {
    fail();
    throw;
  }
  trace::keep_span(trace::SpanKind::backward, began_, trace::Time::clock::now());
  const OnCurrentStream ordered(*group);
  trainer.close();
}

void ReplicaEngine::end_with_arena() {
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    if (gradients_[i].is_taken || trainer.is_declared_unused(static_cast<int>(i))) continue;
    set_aside(i);  // the gradient in .grad, which this backward did not make
    take(i);
  }
  {
    const OnStream ordered(*group, stream_);
    trainer.finish();
  }
  // Here torch's current stream is that of the thread that called backward.
  order(stream_, current_stream(group->device()));
  if (!trainer.is_synchronized()) return;
  // Torch leaves .grad undefined where no row depends on the parameter.
  shares.clear();
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    Gradient& gradient = gradients_[i];
    // Beside an earlier gradient the answer is not worth a device's wait.
    gradient.is_used = mark_ && gradient.had_gradient ? gradient.was_used : is_used(i);
    if (!gradient.had_gradient && !gradient.is_used) continue;
    if (!shares.are_cut()) {
      restore(i);
      continue;
    }
    shares.give_mean(i, gradient.view);
    gradient.earlier.reset();  // zeros, or the backward was refused
  }
  tell_of_unused();
  shares.set_has_means(shares.are_cut());
}

bool ReplicaEngine::is_used(std::size_t index) const {
  const auto number = static_cast<int>(index);
  if (!mark_) return trainer.reducer()->used_anywhere(number);
  return (gradients_[index].is_taken && **trainer.weight() > 0) ||
         (!trainer.is_declared_unused(number) && trainer.reducer()->used_anywhere(number));
}

void ReplicaEngine::tell_of_unused() {
  if (unused_are_told_ || std::ranges::none_of(gradients_, &Gradient::is_used)) return;  // or no rank has rows
  std::vector<std::string> names;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    Gradient& gradient = gradients_[i];
    if (gradient.was_used && !gradient.is_used) names.push_back("'" + parameters()[i].name + "'");
    gradient.was_used |= gradient.is_used;
  }
  if (names.empty() || group->rank() != 0) return;
  unused_are_told_ = true;
  const std::size_t shown = std::min<std::size_t>(names.size(), 4);
  log_warn(
      "DistributedDataParallel: in step {} no rank's loss depends on {}{}, which had gradients in earlier steps. If "
      "that is not meant, look for detach() and NoGradGuard, and evaluate outside of the Autocast scope in which you "
      "train, for autocast keeps casts without a graph. This is logged once",
      trainer.step(), fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
      names.size() > shown ? fmt::format(" and {} more parameters", names.size() - shown) : "");
}

// Torch's threads may hold a step that an exception has ended for longer than the program holds its replica. So that
// step is settled first: later it would write gradients of a module that may have gone.
void ReplicaEngine::leave() noexcept {
  settle_lost();
  trainer.tell_if_unwinding();
  const int unreached = forwards_without_step_.value_or(0);
  try {
    if (unreached > 0 && unreached < kManyForwards && std::uncaught_exceptions() == 0) tell_of_no_backward();
    unhook();
    shares.leave();
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      if (!lies_in_arena(i)) continue;
      order(stream_, current_stream(group->device()));  // the last step may have been in another
      tensor(i).mutable_grad() = is_half_done_ ? at::Tensor() : gradients_[i].view.clone();
    }
  } catch (const std::exception& error) {
    // A gradient that could not be copied stays where it is: it holds the memory.
    log_error("DistributedDataParallel: leaving the module: {}", error.what());
  }
}

void ReplicaEngine::update_shares(const std::function<void()>& step) {
  settle_lost();
  shares.update(step, [this](std::size_t index) -> const at::Tensor& { return gradients_[index].view; });
}

void ReplicaEngine::fail() noexcept {
  trainer.keep_failure("backward");
  give_up();
}

void ReplicaEngine::fail_loss() noexcept {
  if (!trainer.has_failure()) trainer.keep_failure("backward");  // else a forward's
  give_up();
}

void ReplicaEngine::give_up() noexcept {
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    at::Tensor& earlier = gradients_[i].earlier;
    if (earlier.defined()) tensor(i).mutable_grad() = std::exchange(earlier, {});
  }
  if (trainer.in_step() && group->size() > 1) is_half_done_ = true;
  trainer.give_up();
}

// On a device torch's thread says so when it lets go of the backward, which may be during the program's next forward:
// there it tells the other ranks, and nothing else, for the program's thread may be using what give_up() writes.
void ReplicaEngine::end_lost(const End& end) noexcept {
  MutexLock lock(lost_);
  if (awaited_ != &end) return;  // settled
  awaited_ = nullptr;
  is_lost_ = mark_.has_value();
  trainer.tell_of_lost_backward();
  if (!is_lost_) give_up();
}

void ReplicaEngine::settle_lost() noexcept {
  MutexLock lock(lost_);
  // A forward within the backward, as of a checkpoint, is of a step that is not over.
  if (awaited_ != nullptr && ::torch::autograd::get_current_graph_task_nodes_in_graph() == nullptr) {
    awaited_ = nullptr;
    is_lost_ = true;
    trainer.tell_of_lost_backward();
  }
  give_up_lost();
}

void ReplicaEngine::give_up_lost() noexcept {
  if (!std::exchange(is_lost_, false)) return;
  // The program may have cleared its gradients since: those of earlier steps don't come back.
  for (Gradient& gradient : gradients_) gradient.earlier.reset();
  give_up();
}

void ReplicaEngine::refuse_without_weight() const {
  // Outputs of a forward whose backward has ended may still be gone back through.
  if (trainer.has_weight() || (*trainer.weight() && passed_outputs_)) return;
  throw InvalidArgument(
      fmt::format("DistributedDataParallel: a gradient without a weight, in step {}: no forward went through this "
                  "object since the last backward, or its arguments hold no tensor to count rows of; call ddp(x) "
                  "instead of the module's forward, or set_weight() between forward and backward",
                  trainer.step()));
}

void ReplicaEngine::refuse_unweighted() const {
  const bool is_seen = passed_outputs_ || **trainer.weight() == 0 || group->size() == 1;
  if (!options.weigh_outputs || options.loss != Loss::mean || is_seen) return;
  throw InvalidArgument(
      fmt::format("DistributedDataParallel: step {} has a gradient that came through no output that is seen, so that "
                  "the weight is not in it; set DdpOptions::weigh_outputs to false, or let forward return tensors, "
                  "alone or in containers",
                  trainer.step()));
}

// The gradients are those of a forward that did not go through this object, and counted by the rows of one that did.
void ReplicaEngine::refuse_other_forward() const {
  if (passed_outputs_ || !has_outputs_ || is_differentiable_) return;
  throw InvalidArgument(fmt::format(
      "DistributedDataParallel: the backward of step {} did not come through the outputs of the last ddp(x): "
      "its loss was made by the module's own forward, or does not depend on them; call ddp(x) instead, evaluate under "
      "NoGradGuard, and call set_weight() after the forward where the loss is meant to be so",
      trainer.step()));
}

}  // namespace lockstep::libtorch
