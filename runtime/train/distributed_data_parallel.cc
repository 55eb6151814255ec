// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/distributed_data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/intra_op_threads.h"
#include "lockstep/ddp/broadcast_parameters.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/trace/span.h"
#include "runtime/ddp/trainer.h"
#include "runtime/tensor/findings.h"
#include "runtime/tensor/tensor_internals.h"
#include "runtime/train/compute_stream.h"
#include "runtime/train/sharded_parameters.h"

namespace lockstep {
namespace {

std::vector<ParameterSpec> specs_of(const nn::Module& model) {
  std::vector<ParameterSpec> specs;
  for (const auto& [name, tensor] : model.named_parameters()) {
    const auto extents = tensor.shape().extents();
    specs.push_back({name, tensor.dtype(), {extents.begin(), extents.end()}});
  }
  if (specs.empty()) {
    throw InvalidArgument(
        "DistributedDataParallel: the model has no parameters; register a parameter first, or train without "
        "DistributedDataParallel");
  }
  return specs;
}

// Gradients are written where the group's collectives read them. A parameter's gradients are in shards for one
// DistributedDataParallel, or whole for each.
std::shared_ptr<ProcessGroup> require_fitting_group(std::shared_ptr<ProcessGroup> group, const nn::Module& model,
                                                    Shard shard) {
  if (!group) return group;
  for (const auto& [name, tensor] : model.named_parameters()) {
    if (tensor.device() != group->device()) {
      throw InvalidArgument(
          fmt::format("DistributedDataParallel: parameter '{}' is on {}, and the group computes on {} (backend {}); "
                      "call model.to(group->device()) before the optimizer is made, or choose the device by "
                      "InitOptions::device or LOCKSTEP_DEVICE",
                      name, tensor.device().str(), group->device().str(), group->backend()));
    }
    if (TensorInternals(tensor).sharded_update() == nullptr &&
        (shard == Shard::none || TensorInternals(tensor).grad_holders().empty()))
      continue;
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: parameter '{}' also belongs to another live DistributedDataParallel, and "
                    "one of the two objects has Shard::optimizer; leave DdpOptions::shard out, or destroy the other "
                    "DistributedDataParallel first",
                    name));
  }
  return group;
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(nn::Module& model, std::shared_ptr<ProcessGroup> group,
                                                 const DdpOptions& options)
    : module_(model),
      group_(require_fitting_group(std::move(group), model, options.shard)),
      parameters_(model.parameters()),
      loss_(options.loss),
      overlap_(options.overlap),
      reproducible_(options.reproducible),
      seed_(options.seed),
      trainer_(std::make_unique<Trainer>(group_, specs_of(model),
                                         Trainer::Options::of(options, /*track_unused=*/false, group_.get()))),
      own_backward_([this](const Tensor& loss) { backward(loss); }) {
  trainer_->make_reducer();
  for (std::size_t i = 0; i < parameters_.size(); ++i) index_.emplace(parameters_[i].id(), static_cast<int>(i));
  if (reproducible_.is_on()) set_intra_op_threads(reproducible_.threads);
  join_compute_stream(*group_);
  std::vector<BufferView> values;
  std::int64_t bytes = 0;
  for (const Tensor& parameter : parameters_) {
    values.push_back(parameter.view());
    bytes += static_cast<std::int64_t>(values.back().bytes());
  }
  broadcast_parameters(*group_, values);
  trainer_->adopt({.values = {[this] { return versions(); },
                              [this] { return DivergenceCheck::Replica::State{.buffers = state()}; }},
                   .live_gradient = [this] { return live_gradient(); },
                   .weight_bytes = bytes});
  if (options.shard != Shard::none && group_->size() > 1) {
    shards_ = std::make_unique<ShardedParameters>(*trainer_->reducer(), *group_, parameters_, index_);
  }
  for (const Tensor& parameter : parameters_)
    TensorInternals(parameter).hold_grad(own_backward_);  // last: the destructor lets go
}

std::vector<NamedBuffer> DistributedDataParallel::state() const {
  std::vector<NamedBuffer> all;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    all.push_back({reducer().parameters()[i].name, parameters_[i].view()});
  }
  return all;
}

std::uint64_t DistributedDataParallel::versions() const {
  std::uint64_t sum = 0;
  for (const Tensor& parameter : parameters_) sum += parameter.version();
  return sum;
}

void DistributedDataParallel::watch(DataIdentity identity) { trainer_->watch(std::move(identity)); }
NoSync DistributedDataParallel::no_sync(bool is_on) { return trainer_->no_sync(is_on); }
const Reducer& DistributedDataParallel::reducer() const { return *trainer_->reducer(); }
std::int64_t DistributedDataParallel::steps() const { return trainer_->steps(); }
void DistributedDataParallel::set_steps(std::int64_t steps) { trainer_->set_steps(steps); }
void DistributedDataParallel::set_weight_to(std::int64_t weight) { trainer_->set_weight(weight); }
std::int64_t DistributedDataParallel::last_weight() const { return trainer_->last_weight(); }
const GlobalBatch& DistributedDataParallel::last_batch() const { return trainer_->last_batch(); }
void DistributedDataParallel::before_update(std::function<void()> action) {
  trainer_->before_update(std::move(action));
}
void DistributedDataParallel::before_accumulate(std::function<void()> action) {
  trainer_->before_accumulate(std::move(action));
}

DistributedDataParallel::~DistributedDataParallel() {
  trainer_->tell_if_unwinding();
  for (const Tensor& parameter : parameters_) {
    TensorInternals(parameter).release_grad(own_backward_);
    if (planned_) TensorInternals(parameter).unbind_grad();
  }
}

// Between micro-batches the others count on this rank for the step; else an exception may be caught.
template <typename Call>
Tensor DistributedDataParallel::in_forward(Call call) {
  trainer_->forget_failure();
  try {
    return call();
  } catch (...) {
    trainer_->keep_failure("forward");
    if (trainer_->accumulating()) give_up();
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
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: the input is {} and came with {} sample ids; give one id per row of dimension 0",
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
  // A forward that records nothing has no backward, and the loss of another forward may be pending.
  if (grad_enabled()) trainer_->begin_forward(x.shape().dims() == 0 ? 1 : x.size(0));
  const trace::Span span(grad_enabled() ? trace::SpanKind::forward : trace::SpanKind::evaluation);
  return module_(x);
}

std::vector<int> DistributedDataParallel::order_of(std::span<const Tensor> ready_order) const {
  std::vector<int> order;
  std::vector<char> on_tape(parameters_.size(), 0);
  for (const Tensor& leaf : ready_order) {
    const auto found = index_.find(leaf.id());
    if (found == index_.end()) continue;  // a leaf of the user's own
    order.push_back(found->second);
    on_tape[static_cast<std::size_t>(found->second)] = 1;
  }
  // Parameters that the first loss does not depend on come last: they wait for finish_step anyway.
  for (int i = static_cast<int>(parameters_.size()) - 1; i >= 0; --i) {
    if (!on_tape[static_cast<std::size_t>(i)]) order.push_back(i);
  }
  return order;
}

void DistributedDataParallel::plan(std::span<const Tensor> ready_order) {
  Reducer& reducer = *trainer_->reducer();
  if (!shards_) reducer.plan_order(order_of(ready_order));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    TensorInternals(parameters_[i]).bind_grad(reducer.gradient<float>(static_cast<int>(i)));
    parameters_[i].clear_grad();
  }
  planned_ = true;
}

void DistributedDataParallel::give_up() noexcept {
  trainer_->give_up();
  for (const Tensor& parameter : parameters_) parameter.clear_grad();  // the gradients are half of a step
  if (shards_) shards_->hold(ShardedUpdate::Holds::gradients);
}

template <typename Call>
std::optional<std::int64_t> DistributedDataParallel::in_step(Call call) {
  try {
    call();
  } catch (...) {
    trainer_->keep_failure("backward");
    give_up();
    throw;
  }
  trainer_->close();
  return trainer_->known_weight();
}

std::optional<std::int64_t> DistributedDataParallel::backward(const Tensor& loss) {
  return in_step([&] {
    if (reproducible_.is_on()) {
      throw InvalidArgument(
          fmt::format("DistributedDataParallel: the program called backward(loss) in step {} of {} fixed "
                      "micro-batches, each of which has its own loss: call ddp.backward(batch, loss_of) instead",
                      trainer_->step(), reproducible_.micro_batches));
    }
    run_backward(loss);
  });
}

std::optional<std::int64_t> DistributedDataParallel::backward(std::int64_t rows, const LossOf& loss_of) {
  return in_step([&] { run_micro_batches(rows, loss_of); });
}

std::optional<std::int64_t> DistributedDataParallel::backward(const data::Batch& batch, const LossOfBatch& loss_of) {
  return backward(batch.size(), [&](std::int64_t begin, std::int64_t end) {
    return begin == 0 && end == batch.size() ? loss_of(batch) : loss_of(batch.rows(begin, end));
  });
}

void DistributedDataParallel::run_micro_batches(std::int64_t rows, const LossOf& loss_of) {
  for (const MicroBatch& micro_batch : trainer_->begin_micro_batches(rows)) {
    if (!reproducible_.is_on()) return run_backward(loss_of(0, rows));
    trainer_->begin_micro_batch(micro_batch);
    for (const Tensor& parameter : parameters_) parameter.clear_grad();
    if (micro_batch.begin == micro_batch.end) {
      trainer_->begin_forward(0);
      run_without_rows();
    } else {
      run_backward(loss_of(micro_batch.begin, micro_batch.end));
    }
    if (!micro_batch.is_last) trainer_->close();
  }
}

void DistributedDataParallel::run_without_rows() {
  const trace::Span span(trace::SpanKind::backward);
  if (!planned_) plan({});
  begin_step();
  finish_step();
}

void DistributedDataParallel::step_without_data() {
  trainer_->spend_weight();
  if (reproducible_.is_on()) {
    backward(0, LossOf());
    return;
  }
  try {
    trainer_->begin_forward(0);
  } catch (...) {
    trainer_->keep_failure("forward");
    throw;
  }
  in_step([&] { run_without_rows(); });
}

void DistributedDataParallel::run_backward(const Tensor& loss) {
  const trace::Span span(trace::SpanKind::backward);
  if (!trainer_->has_weight()) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: backward got a loss without a weight, in step {}: no forward went "
                    "through this object since the last backward. Call ddp(x) instead of the module's forward, call "
                    "backward once per forward, or set_weight() between forward and backward",
                    trainer_->step()));
  }
  if (loss.count() != 1) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: the loss of step {} is {}, and must have exactly one element; take "
                    "mean() or sum() first",
                    trainer_->step(), loss.str()));
  }
  const std::int64_t weight = **trainer_->weight();
  if (!planned_) plan(ready_order(loss));
  trainer_->record_loss(loss.view(), group_->stream(), std::make_shared<Tensor>(loss.detach()));
  begin_step();
  Reducer& reducer = *trainer_->reducer();
  std::vector<int> held;
  const auto on_leaf_ready = [&](const Tensor& leaf) {
    const auto found = index_.find(leaf.id());
    if (found == index_.end()) return;
    carried_.erase(found->second);
    trainer_->require_used(found->second);
    overlap_ ? reducer.mark_ready(found->second) : held.push_back(found->second);
  };
  lockstep::backward(loss, static_cast<float>(loss_ == Loss::mean ? weight : std::min<std::int64_t>(weight, 1)),
                     {.accumulate = true, .into_held = true, .on_leaf_ready = on_leaf_ready});
  for (const int parameter : held) reducer.mark_ready(parameter);
  finish_step();
}

void DistributedDataParallel::refuse_changed() const {
  for (const auto& [name, tensor] : module_.named_parameters()) {
    if (index_.contains(tensor.id())) continue;
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: parameter '{}' was added to the module after it was wrapped, and nobody "
                    "would average its gradient; wrap the module again",
                    name));
  }
}

void DistributedDataParallel::begin_step() {
  refuse_changed();
  join_compute_stream(*group_);
  if (trainer_->synchronizes() && group_->device().kind != DeviceKind::cpu) throw_findings(kernels(group_->device()));
  trainer_->begin();
  if (shards_ && shards_->holds() != ShardedUpdate::Holds::gradients) {
    for (const Tensor& parameter : parameters_) parameter.clear_grad();  // of frozen ones, which are none
    shards_->hold(ShardedUpdate::Holds::gradients);
  }
  carry_gradients(**trainer_->weight());
}

// On a device this waits for it: programs that clear their gradients don't come here.
std::optional<std::string> DistributedDataParallel::live_gradient() const {
  const bool is_spent = shards_ && shards_->holds() != ShardedUpdate::Holds::gradients;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].has_grad() || (is_spent && !parameters_[i].requires_grad())) continue;
    if (is_spent || optim::grad_norm({&parameters_[i], 1}) != 0) return reducer().parameters()[i].name;
  }
  return std::nullopt;
}

// Gradients that the program has not cleared are added to, as torch's are. Each rank puts its part of them into the
// sum, so that the sum over the ranks has them once. With a mean a rank without rows has no part, and no rank has one
// if none has rows.
void DistributedDataParallel::carry_gradients(std::int64_t weight) {
  carried_.clear();
  previous_gradients_.clear();
  if (trainer_->accumulating()) return;
  const float part = loss_ == Loss::mean ? static_cast<float>(weight) : 1.0f / static_cast<float>(group_->size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const int index = static_cast<int>(i);
    if (!parameters_[i].has_grad() || trainer_->is_declared_unused(index)) continue;
    const Tensor gradient = parameters_[i].grad();
    if (part == 0) {
      previous_gradients_.emplace_back(index, gradient.clone());
      gradient.zero();  // not a scale by 0: 0 times Inf is NaN
    } else {
      float* const data = gradient.data<float>();
      kernels(gradient.device()).scale({data, false}, data, part, gradient.count());
    }
    carried_.insert(index);
  }
}

void DistributedDataParallel::finish_step() {
  Reducer& reducer = *trainer_->reducer();
  for (const int parameter : carried_) reducer.mark_ready(parameter);
  trainer_->finish();
  if (!previous_gradients_.empty() && last_weight() == 0) {
    for (const auto& [parameter, values] : previous_gradients_)
      parameters_[static_cast<std::size_t>(parameter)].grad().copy_from(values);
  }
  // A gradient that only other ranks contributed to lies in the arena without this rank's backward having touched it.
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor gradient = TensorInternals(parameters_[i]).grad_for_writing();
    if (gradient.data<float>() == reducer.gradient<float>(static_cast<int>(i))) continue;
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: '{}' has been converted or moved since the module was wrapped, and "
                    "nobody would average its gradient; wrap the module again",
                    reducer.parameters()[i].name));
  }
  if (shards_ && trainer_->is_synchronized()) shards_->hold(ShardedUpdate::Holds::shards);
}

void DistributedDataParallel::check_replicas() const {
  try {
    refuse_changed();
  } catch (...) {
    trainer_->keep_failure("replica check");
    trainer_->tell_failure();  // the others wait in it
    throw;
  }
  lockstep::check_replicas(*group_, state());
}

}  // namespace lockstep
