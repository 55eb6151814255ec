// SPDX-License-Identifier: Apache-2.0
#include "runtime/libtorch/replica_engine.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
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

void ReplicaEngine::enter() {
  settle_lost();
  refuse_changed();
}

void ReplicaEngine::before_forward() {
  if (!is_training() || !unreached_) return;
  const std::uint64_t now = trained_versions();
  writes_without_backward_ = std::exchange(*unreached_, now) == now ? 0 : writes_without_backward_ + 1;
  if (writes_without_backward_ < 3) return;
  throw InvalidArgument(
      fmt::format("DistributedDataParallel: in step {} weights were written after each of the last {} forwards that "
                  "train, and no backward() reached a parameter, so the replicas diverge. Call backward() on the loss "
                  "instead of torch::autograd::grad; if you average gradients yourself, call the module's own forward; "
                  "evaluate in eval() or under NoGradGuard",
                  trainer.step(), writes_without_backward_));
}

void ReplicaEngine::after_forward(std::span<at::Tensor* const> outputs) {
  if (!at::GradMode::is_enabled()) return;
  std::vector<at::Tensor> roots;
  for (const at::Tensor* output : outputs) {
    if (output->defined()) roots.push_back(*output);
  }
  expects_outputs_ = std::ranges::any_of(roots, &at::Tensor::requires_grad);
  if (is_training() && expects_outputs_) {
    // A forward may write parameters itself: only the program's writes from here to the next forward count.
    if (group->size() > 1) unreached_ = trained_versions();
    if (forwards_without_step_ && !audit.drops_gradients() && ++*forwards_without_step_ == kManyForwards)
      tell_of_no_backward();
  }
  gradients.order_by(roots);
  for (at::Tensor* output : outputs) {
    // A graph may outlive the replica, and must not keep it.
    *output = behind_boundary(*output, [weak = weak_from_this()] {
      const auto live = weak.lock();
      return live ? live->on_output() : 1;
    });
  }
}

void ReplicaEngine::tell_of_no_backward() {
  const int made = *std::exchange(forwards_without_step_, std::nullopt);
  if (group->rank() != 0) return;
  log_warn(
      "DistributedDataParallel: {} forwards that train, and no backward() has reached a parameter: call backward() on "
      "a loss of ddp's outputs, without detach() or NoGradGuard between them, and evaluate in eval() or under "
      "NoGradGuard. This is logged once",
      made);
}

double ReplicaEngine::on_output() {
  if (gradients.is_captured()) return 1;
  await_end();
  passed_outputs_ = true;
  // The gradient is taken as a function (create_graph): a loss made of it alone passes no outputs.
  if (at::GradMode::is_enabled()) expects_outputs_ = false;
  const bool weigh = options.weight_outputs && options.loss == Loss::mean && !gradients.needs_no_arena();
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
  // Queued without the lock: if torch refuses the callback, End's destructor takes the lock, and must find that nobody
  // awaits it.
  const auto end = std::make_shared<End>(weak_from_this());
  ::torch::autograd::Engine::get_default_engine().queue_callback([end] {
    end->was_called = true;  // first: an exception of end() is no lost backward, and has given the step up
    if (const auto live = end->replica.lock()) live->end();
  });
  MutexLock lock(lost_);
  awaited_ = end.get();
}

void ReplicaEngine::begin() {
  unreached_.reset();
  writes_without_backward_ = 0;
  forwards_without_step_.reset();
  // All refusals come before the step is begun, so that a refused backward leaves nothing half done.
  refuse_thawed_or_converted();
  repeatable.refuse_other_backward();
  shards.refuse_unclaimed();
  refuse_unweighted();
  if (trainer.micro_batch()) micro_batch_buffers.refuse_other_writes(trainer.step());
  // In this order: if progress() finds the group's failure, which ranks may see at different times, all of them have
  // run the action.
  trainer.tell_of_accumulation();
  group->progress();  // notices a group that has failed
  gradients.begin();
}

template <typename Call>
auto ReplicaEngine::in_backward(Call call) {
  await_end();  // before begin(): if that throws, the lost End gives the step up
  try {
    if (!trainer.in_step()) begin();
    return call();
  } catch (...) {
    trainer.keep_failure("backward");
    throw;
  }
}

void ReplicaEngine::before_gradient(std::size_t index, bool has_gradient) {
  if (gradients.is_captured() || audit.drops_gradients()) return;
  in_backward([&] { gradients.prepare(index, has_gradient); });
}

at::Tensor ReplicaEngine::gradient_place(std::size_t index) {
  if (!overlap_ || gradients.is_captured() || audit.drops_gradients()) return {};
  return in_backward([&] { return gradients.place(index); });
}

void ReplicaEngine::expect_finite(std::size_t index, const at::Tensor& gradient) {
  if (gradients.is_captured() || audit.drops_gradients()) return;
  in_backward([&] { gradients.expect_finite(index, gradient); });
}

void ReplicaEngine::on_gradient(std::size_t index) {
  at::Tensor& gradient = parameters()[index].tensor.mutable_grad();
  if (gradient.defined()) audit.saw_gradient(index, gradient);
  if (audit.drops_gradients()) {
    // If buckets wait for the end of backward, torch may accumulate a gradient in several parts.
    if (overlap_) gradient.reset();
    return;
  }
  if (!overlap_ && !trainer.is_alone()) return;  // finish() takes it
  try {
    gradients.take(index);
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
  // The lock is not held while gradients are summed: a thread of torch's that lets go of an older backward needs it.
  {
    MutexLock lock(lost_);
    awaited_ = nullptr;
  }
  // The optimizer writes the parameters next, and an evaluation may come after it.
  at::autocast::clear_cache();
  if (!trainer.in_step()) return;  // nothing of this module's got a gradient
  trainer.spend_weight();
  std::string refusal;
  try {
    refuse_other_forward();
    gradients.finish(began_);
    refusal = gradients.finish_buffers();
  } catch (...) {
    fail();
    throw;
  }
  trace::keep_span(trace::SpanKind::backward, began_, trace::Time::clock::now());
  // Outside of the handler: close() throws on all ranks alike, when the step is over and .grad has its gradients.
  const OnCurrentStream ordered(*group);
  const std::int64_t step = trainer.step();
  trainer.close();
  if (!refusal.empty()) throw InvalidArgument(fmt::format("DistributedDataParallel: in step {} {}", step, refusal));
}

// Torch's threads may hold a step that an exception has ended for longer than the program holds its replica. So that
// step is settled first: later it would write gradients of a module that may have gone.
void ReplicaEngine::leave() noexcept {
  settle_lost();
  trainer.tell_if_unwinding();
  try {
    if (forwards_without_step_.value_or(0) > 0 && std::uncaught_exceptions() == 0) tell_of_no_backward();
    // Before .grad leaves the arena: a backward of the bare module must not bring gradients here.
    unhook();
    shards.leave();
    gradients.leave();
  } catch (const std::exception& error) {
    // A gradient that could not be copied stays where it is: it holds the memory.
    log_error(
        "DistributedDataParallel: this object could not unwrap its module completely; make the module anew before you "
        "wrap it again: {}",
        error.what());
  }
}

void ReplicaEngine::fail() noexcept {
  trainer.keep_failure("backward");
  gradients.give_up();
}

void ReplicaEngine::fail_loss() noexcept {
  if (!trainer.has_failure()) trainer.keep_failure("backward");  // else a forward's
  gradients.give_up();
}

// On a device torch's thread says so when it lets go of the backward, which may be during the program's next forward:
// there it tells the other ranks, and nothing else, for the program's thread may be using what give_up() writes.
void ReplicaEngine::end_lost(const End& end) noexcept {
  MutexLock lock(lost_);
  if (awaited_ != &end) return;  // settled
  // Under one lock with the rest: settle_lost() must find the step either awaited or lost, else it stays open.
  awaited_ = nullptr;
  is_lost_ = group->device().kind != DeviceKind::cpu;
  trainer.tell_of_lost_backward();
  if (!is_lost_) gradients.give_up();
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
  gradients.forget_earlier();
  gradients.give_up();
}

void ReplicaEngine::refuse_unweighted() const {
  // Outputs of a forward whose backward has ended may still be gone back through.
  if (!trainer.has_weight() && !(*trainer.weight() && passed_outputs_)) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: backward got a gradient without a weight, in step {}: no forward went "
                    "through this object since the last backward, or its arguments hold no tensor to count rows of; "
                    "call ddp(x) instead of the module's forward, or set_weight() between forward and backward",
                    trainer.step()));
  }
  const bool is_seen = passed_outputs_ || **trainer.weight() == 0 || group->size() == 1;
  if (!options.weight_outputs || options.loss != Loss::mean || is_seen) return;
  throw InvalidArgument(fmt::format(
      "DistributedDataParallel: step {} has a gradient that came through no output that lockstep sees, so it is not "
      "weighted; set DdpOptions::weight_outputs to false, or let forward return a tensor or a container of tensors",
      trainer.step()));
}

// The gradients are those of a forward that did not go through this object, and counted by the rows of one that did.
void ReplicaEngine::refuse_other_forward() const {
  if (passed_outputs_ || !expects_outputs_) return;
  throw InvalidArgument(
      fmt::format("DistributedDataParallel: the backward of step {} did not come through the outputs of the last "
                  "ddp(x), as if its loss was made by the module's own forward; call ddp(x) instead, evaluate under "
                  "NoGradGuard, and call set_weight() after the forward if that is intended",
                  trainer.step()));
}

}  // namespace lockstep::libtorch
