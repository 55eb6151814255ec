// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/distributed_data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/intra_op_threads.h"
#include "lockstep/ddp/broadcast_parameters.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/trace/span.h"
#include "runtime/ddp/arguments.h"
#include "runtime/ddp/divergence_check.h"
#include "runtime/ddp/loss_record.h"
#include "runtime/ddp/loss_sum.h"
#include "runtime/ddp/own_failure.h"
#include "runtime/ddp/unused.h"
#include "runtime/tensor/findings.h"
#include "runtime/trace/process_trace.h"
#include "runtime/train/compute_stream.h"

namespace lockstep {
namespace {

std::vector<ParameterSpec> specs_of(const nn::Module& model) {
  std::vector<ParameterSpec> specs;
  for (const auto& [name, tensor] : model.named_parameters()) {
    const auto extents = tensor.shape().extents();
    specs.push_back({name, tensor.dtype(), {extents.begin(), extents.end()}});
  }
  if (specs.empty()) {
    throw InvalidArgument("DistributedDataParallel: the model has no parameters; register them, or train without it");
  }
  return specs;
}

// Gradients are written where the group's collectives read them.
std::shared_ptr<ProcessGroup> require_at_home(std::shared_ptr<ProcessGroup> group, const nn::Module& model) {
  if (!group) return group;
  for (const auto& [name, tensor] : model.named_parameters()) {
    if (tensor.device() == group->device()) continue;
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: parameter '{}' is on {}, and backend {} works on {}; call "
        "model.to(group->device()) before the optimizer is made, or choose the device by InitOptions::device or "
        "LOCKSTEP_DEVICE",
        name, tensor.device().str(), group->backend(), group->device().str()));
  }
  return group;
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(nn::Module& model, std::shared_ptr<ProcessGroup> group,
                                                 const DdpOptions& options)
    : module_(model),
      group_(require_at_home(std::move(group), model)),
      parameters_(model.parameters()),
      reducer_(specs_of(model), group_,
               {.buckets = options.buckets,
                .loss = options.loss,
                .comm_hook = options.comm_hook,
                .not_finite = options.not_finite,
                .reproducible = options.reproducible}),
      divergence_(divergence_check(options)),
      failure_(std::make_unique<OwnFailure>(group_)),
      losses_(std::make_unique<LossRecord>(options.loss, group_, loss_parts(options.reproducible, group_->size()))),
      loss_(options.loss),
      unused_(indices_of_unused(options.unused, reducer_.parameters())),
      overlap_(options.overlap),
      reproducible_(options.reproducible),
      seed_(options.seed) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) index_.emplace(parameters_[i].id(), static_cast<int>(i));
  if (reproducible_.is_on()) set_intra_op_threads(reproducible_.threads);
  join_compute_stream(*group_);
  std::vector<BufferView> values;
  for (const Tensor& parameter : parameters_) values.push_back(parameter.view());
  broadcast_parameters(*group_, values);
  for (const Tensor& parameter : parameters_) parameter.hold_grad(own_backward_);  // last: the destructor lets go
}

std::vector<NamedBuffer> DistributedDataParallel::state() const {
  std::vector<NamedBuffer> all;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    all.push_back({reducer_.parameters()[i].name, parameters_[i].view()});
  }
  return all;
}

std::uint64_t DistributedDataParallel::versions() const {
  std::uint64_t sum = 0;
  for (const Tensor& parameter : parameters_) sum += parameter.version();
  return sum;
}

std::unique_ptr<DivergenceCheck> DistributedDataParallel::divergence_check(const DdpOptions& options) const {
  return std::make_unique<DivergenceCheck>(
      group_, options.compare_every.value_or(DivergenceCheck::default_every(group_->device())),
      DivergenceCheck::Replica{[this] { return versions(); },
                               [this] { return DivergenceCheck::Replica::State{.buffers = state()}; }});
}

void DistributedDataParallel::watch(DataIdentity identity) { divergence_->watch(std::move(identity)); }

DistributedDataParallel::~DistributedDataParallel() {
  failure_->tell_if_unwinding(reducer_.accumulating());
  for (const Tensor& parameter : parameters_) {
    parameter.release_grad(own_backward_);
    if (planned_) parameter.unbind_grad();
  }
}

// Between micro-batches the others count on this rank for the step; else an exception may be caught.
template <typename Call>
Tensor DistributedDataParallel::in_forward(Call call) {
  failure_->forget();
  try {
    return call();
  } catch (...) {
    reducer_.accumulating() ? give_up("forward") : keep_failure("forward");
    throw;
  }
}

Tensor DistributedDataParallel::operator()(const Tensor& x) {
  return in_forward([&] {
    // Without ids, those of an earlier batch must not count for this one.
    if (std::exchange(ids_given_, false)) module_.set_context(context_of({}));
    return run_forward(x);
  });
}

Tensor DistributedDataParallel::operator()(const Tensor& x, std::vector<std::int64_t> ids) {
  if (x.shape().dims() == 0 || x.size(0) != static_cast<std::int64_t>(ids.size())) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: the input is {} and came with {} sample ids; there must "
                    "be one per row of dimension 0",
                    x.str(), ids.size()));
  }
  return in_forward([&] {
    module_.set_context(context_of(std::move(ids)));
    ids_given_ = true;
    return run_forward(x);
  });
}

nn::ForwardContext DistributedDataParallel::context_of(std::vector<std::int64_t> ids) const {
  return {.seed = seed_, .step = static_cast<std::uint64_t>(steps()), .sample_ids = std::move(ids)};
}

Tensor DistributedDataParallel::run_forward(const Tensor& x) {
  // One that records nothing has no backward, and the loss of another may be pending.
  if (grad_enabled()) {
    weight_ = x.shape().dims() == 0 ? 1 : x.size(0);
    if (*no_sync_ > 0 && !reducer_.accumulating()) refuse_live_gradients("at the first micro-batch of no_sync()");
  }
  const trace::Span span(grad_enabled() ? trace::SpanKind::forward : trace::SpanKind::evaluation);
  return module_(x);
}

void DistributedDataParallel::set_steps(std::int64_t steps) { steps_before_ = checked_steps(steps) - steps_; }

void DistributedDataParallel::set_weight_to(std::int64_t weight) {
  weight_ = checked_weight(weight);
  weights_are_told_ = true;
}

void DistributedDataParallel::plan(std::span<const Tensor> ready_order) {
  std::vector<int> order;
  std::vector<char> on_tape(parameters_.size(), 0);
  for (const Tensor& leaf : ready_order) {
    const auto found = index_.find(leaf.id());
    if (found == index_.end()) continue;  // a leaf of the user's own
    order.push_back(found->second);
    on_tape[static_cast<std::size_t>(found->second)] = 1;
  }
  // What the first loss does not depend on comes last: it waits for finish_step anyway.
  for (int i = static_cast<int>(parameters_.size()) - 1; i >= 0; --i) {
    if (!on_tape[static_cast<std::size_t>(i)]) order.push_back(i);
  }
  reducer_.plan_order(order);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].bind_grad(reducer_.gradient<float>(static_cast<int>(i)));
    parameters_[i].clear_grad();
  }
  planned_ = true;
}

void DistributedDataParallel::keep_failure(std::string_view part) noexcept {
  failure_->keep(fmt::format("the {} of step {}", part, steps_), std::current_exception());
}

void DistributedDataParallel::give_up(std::string_view part) noexcept {
  keep_failure(part);
  failure_->tell();
  reducer_.abandon_step(message_of(std::current_exception()));
  losses_->forget(steps_);
  for (const Tensor& parameter : parameters_) parameter.clear_grad();  // what is there is half of a step
}

template <typename Call>
void DistributedDataParallel::in_step(Call call) {
  const bool is_synchronized = *no_sync_ == 0;
  try {
    call();
    is_last_shard_ = true;
  } catch (...) {
    is_last_shard_ = true;
    give_up("backward");
    throw;
  }
  failure_->forget();
  weight_.reset();
  if (!is_synchronized) return;
  ++steps_;
  last_batch_ = losses_->batch_of(reducer_.noted());
  if (group_->device().kind == DeviceKind::cpu) last_weight_ = last_batch_.weight;
  trace::keep_batch(last_batch_.step, last_batch_.weight, last_batch_.loss);
  divergence_->judge(steps_ - 1, reducer_.noted());  // what it throws, all ranks throw: no failure of this one's
  versions_ = versions();
  if (before_update_) before_update_();
}

std::optional<std::int64_t> DistributedDataParallel::backward(const Tensor& loss) {
  in_step([&] {
    if (reproducible_.is_on()) {
      throw InvalidArgument(
          fmt::format("DistributedDataParallel: backward(loss) in step {}, of {} virtual shards, of which each has a "
                      "loss: call backward(batch, loss_of), which asks for them",
                      steps_, reproducible_.virtual_shards));
    }
    run_backward(loss);
  });
  return last_weight_;
}

std::optional<std::int64_t> DistributedDataParallel::backward(std::int64_t rows, const LossOf& loss_of) {
  in_step([&] { run_shards(rows, loss_of); });
  return last_weight_;
}

std::optional<std::int64_t> DistributedDataParallel::backward(const data::Batch& batch, const LossOfBatch& loss_of) {
  return backward(batch.size(), [&](std::int64_t begin, std::int64_t end) {
    return begin == 0 && end == batch.size() ? loss_of(batch) : loss_of(batch.rows(begin, end));
  });
}

void DistributedDataParallel::run_shards(std::int64_t rows, const LossOf& loss_of) {
  if (!reproducible_.is_on()) return run_backward(loss_of(0, rows));
  refuse_no_sync(reproducible_, *no_sync_ > 0, steps_);
  const auto shards = shards_of_step(reproducible_, rows, group_->rank(), group_->size());
  refuse_live_gradients("at the first virtual shard of a step");
  weights_are_told_ = false;
  for (const StepShard& shard : shards) {
    is_last_shard_ = shard.is_last;
    for (const Tensor& parameter : parameters_) parameter.clear_grad();
    weight_.reset();
    if (shard.begin == shard.end) {
      run_without_rows();
      continue;
    }
    const Tensor loss = loss_of(shard.begin, shard.end);
    if (!weights_are_told_ && weight_) require_rows_of_shard(shard, *weight_);
    run_backward(loss);
  }
  if (weights_are_told_ || rows == 0) return;
  const GlobalBatch all = global_batch_of(reducer_.noted(), loss_, loss_parts(reproducible_, group_->size()));
  require_dealt_as_shards(reproducible_, rows, all.weight, group_->rank(), group_->size());
}

void DistributedDataParallel::run_without_rows() {
  const trace::Span span(trace::SpanKind::backward);
  if (!planned_) plan({});
  losses_->begin_backward(0);
  begin_step(0);
  finish_step();
}

void DistributedDataParallel::step_without_data() {
  if (reproducible_.is_on()) {
    backward(0, LossOf());
    return;
  }
  if (*no_sync_ > 0 && !reducer_.accumulating()) refuse_live_gradients("at the first micro-batch of no_sync()");
  in_step([&] { run_without_rows(); });
}

void DistributedDataParallel::run_backward(const Tensor& loss) {
  const trace::Span span(trace::SpanKind::backward);
  if (!weight_) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: a loss without a weight, in step {}: no forward went through this object "
                    "since the last backward; call ddp(x) instead of the module's forward, or set_weight() between "
                    "forward and backward",
                    steps_));
  }
  if (loss.count() != 1) {
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: the loss of step {} is {}, it must have exactly one element; take mean() or sum() "
        "first",
        steps_, loss.str()));
  }
  const std::int64_t weight = *weight_;
  if (!planned_) plan(ready_order(loss));
  losses_->record(loss.view(), group_->stream(), std::make_shared<Tensor>(loss.detach()));
  losses_->begin_backward(weight);
  begin_step(weight);
  std::vector<int> held;
  const auto on_leaf_ready = [&](const Tensor& leaf) {
    const auto found = index_.find(leaf.id());
    if (found == index_.end()) return;
    carried_.erase(found->second);
    if (unused_.contains(found->second)) {
      refuse_gradient_of_unused(reducer_.parameters()[static_cast<std::size_t>(found->second)].name, steps_);
    }
    overlap_ ? reducer_.mark_ready(found->second) : held.push_back(found->second);
  };
  lockstep::backward(loss, static_cast<float>(loss_ == Loss::mean ? weight : std::min<std::int64_t>(weight, 1)),
                     {.accumulate = true, .into_held = true, .on_leaf_ready = on_leaf_ready});
  for (const int parameter : held) reducer_.mark_ready(parameter);
  finish_step();
}

void DistributedDataParallel::refuse_changed() const {
  for (const auto& [name, tensor] : module_.named_parameters()) {
    if (index_.contains(tensor.id())) continue;
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: parameter '{}' has come into the module since it was wrapped, and nobody "
                    "would average its gradient; wrap the module again",
                    name));
  }
}

void DistributedDataParallel::begin_step(std::int64_t weight) {
  refuse_changed();
  join_compute_stream(*group_);
  tell_of_adding();
  const bool synchronize = synchronizes();
  StepNote note;
  if (synchronize) {
    note = divergence_->note(steps_);
    losses_->close_step(steps_);
    losses_->write(note, steps_);
    if (group_->device().kind != DeviceKind::cpu) throw_findings(kernels(group_->device()));
  }
  reducer_.begin_step({.weight = weight, .synchronize = synchronize, .note = note});
  for (const int parameter : unused_) reducer_.mark_unused(parameter);
  carry_gradients(weight);
}

// On a device this waits for it: programs that clear their gradients don't come here.
std::optional<std::size_t> DistributedDataParallel::live_gradient() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].has_grad() && optim::grad_norm({&parameters_[i], 1}) != 0) return i;
  }
  return std::nullopt;
}

// What lies in a gradient before the first of several micro-batches would be divided by the weight of all of them.
void DistributedDataParallel::refuse_live_gradients(std::string_view where) const {
  if (const auto live = live_gradient()) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: '{}' still has the gradient of an earlier step {}; call zero_grad() "
                    "before",
                    reducer_.parameters()[*live].name, where));
  }
}

void DistributedDataParallel::tell_of_adding() {
  const auto action = std::exchange(before_adding_, nullptr);
  if (action && (reducer_.accumulating() || (versions() == versions_ && live_gradient()))) action();
}

// Gradients that nobody has cleared are added to, as torch's are. Each rank puts its part of them into the sum, so that
// the ranks together have them once. Of a mean a rank without rows has no part, nor do all of them if none has rows.
void DistributedDataParallel::carry_gradients(std::int64_t weight) {
  carried_.clear();
  set_aside_.clear();
  if (reducer_.accumulating()) return;
  const float part = loss_ == Loss::mean ? static_cast<float>(weight) : 1.0f / static_cast<float>(group_->size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const int index = static_cast<int>(i);
    if (!parameters_[i].has_grad() || unused_.contains(index)) continue;
    const Tensor gradient = parameters_[i].grad();
    if (part == 0) {
      set_aside_.emplace_back(index, gradient.clone());
      gradient.zero();  // 0 times Inf is none
    } else {
      float* const data = gradient.data<float>();
      kernels(gradient.device()).scale({data, false}, data, part, gradient.count());
    }
    carried_.insert(index);
  }
}

void DistributedDataParallel::finish_step() {
  for (const int parameter : carried_) reducer_.mark_ready(parameter);
  last_weight_ = reducer_.finish_step();
  if (!set_aside_.empty() && last_weight() == 0) {
    for (const auto& [parameter, values] : set_aside_)
      parameters_[static_cast<std::size_t>(parameter)].grad().copy_from(values);
  }
  // A gradient that only other ranks contributed to lies in the arena without this rank's backward having touched it.
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].grad_for_writing().data<float>() == reducer_.gradient<float>(static_cast<int>(i))) continue;
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: '{}' has been converted or moved since the module was wrapped, and "
                    "nobody would average its gradient; wrap the module again",
                    reducer_.parameters()[i].name));
  }
}

// On a device finish_step can't say.
std::int64_t DistributedDataParallel::last_weight() const {
  return last_weight_ ? *last_weight_ : reducer_.total_weight();
}

void DistributedDataParallel::check_replicas() const {
  try {
    refuse_changed();
  } catch (...) {
    failure_->keep(fmt::format("the replica check of step {}", steps_), std::current_exception());
    failure_->tell();  // the others wait in it
    throw;
  }
  lockstep::check_replicas(*group_, state());
}

}  // namespace lockstep
