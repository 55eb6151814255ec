// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/optimizer.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/trace/span.h"
#include "runtime/base/exact_squares.h"
#include "runtime/tensor/kernels.h"
#include "runtime/tensor/sharded_update.h"
#include "runtime/tensor/tensor_internals.h"
#include "runtime/trace/held_memory.h"
#include "runtime/trace/process_trace.h"

namespace lockstep::optim {

std::vector<ParameterGroup> decay_groups(const std::vector<Tensor>& parameters, double weight_decay) {
  std::vector<ParameterGroup> groups{{.parameters = {}, .weight_decay = weight_decay}, {}};
  for (const Tensor& parameter : parameters) groups[parameter.shape().dims() < 2].parameters.push_back(parameter);
  return groups;
}

Optimizer::Optimizer(std::vector<ParameterGroup> groups, double learning_rate)
    : learning_rate_(0), held_(std::make_shared<trace::HeldMemory>(trace::Held::optimizer_state)) {
  set_learning_rate(learning_rate);
  for (ParameterGroup& group : groups) {
    if (!(group.weight_decay >= 0)) {
      throw InvalidArgument(
          fmt::format("optimizer: weight_decay is {}, and must be 0 or more; give 0 for no decay", group.weight_decay));
    }
    for (Tensor& parameter : group.parameters) {
      if (!parameter || !parameter.requires_grad() || !parameter.is_leaf()) {
        throw InvalidArgument(
            fmt::format("optimizer: parameter {} ({}) is not a leaf that requires a gradient; give the tensors of "
                        "model.parameters()",
                        parameters_.size(), parameter.str()));
      }
      if (!index_.emplace(parameter.id(), parameters_.size()).second) {
        throw InvalidArgument(
            fmt::format("optimizer: parameter {} ({}) was given twice; give each tensor of model.parameters() once",
                        parameters_.size(), parameter.str()));
      }
      if (!parameters_.empty() &&
          TensorInternals(parameter).sharded_update() != TensorInternals(parameters_[0]).sharded_update()) {
        throw InvalidArgument(
            fmt::format("optimizer: parameter {} ({}) does not belong to the DistributedDataParallel of parameter 0, "
                        "and with Shard::optimizer an optimizer serves only one DistributedDataParallel; give each "
                        "DistributedDataParallel its own optimizer",
                        parameters_.size(), parameter.str()));
      }
      devices_.push_back(parameter.device());
      parameters_.push_back(std::move(parameter));
      weight_decay_.push_back(group.weight_decay);
    }
  }
  shards_ = parameters_.empty() ? nullptr : TensorInternals(parameters_[0]).sharded_update();
  if (shards_ != nullptr) shards_->claim(this);
}

Optimizer::~Optimizer() {
  if (shards_ != nullptr && TensorInternals(parameters_[0]).sharded_update() == shards_ &&
      shards_->is_claimed_by(this)) {
    shards_->release();
  }
}

// The DistributedDataParallel may be gone, and another one be in its place.
void Optimizer::require_own_shards() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    ShardedUpdate* const now = TensorInternals(parameters_[i]).sharded_update();
    if (now == shards_ && (now == nullptr || now->is_claimed_by(this))) continue;
    throw InvalidArgument(fmt::format(
        "optimizer: parameter {} ({}) was {} when the optimizer was made, and is not any more; step() changed nothing. "
        "Make the optimizer after the DistributedDataParallel, and destroy the optimizer before the "
        "DistributedDataParallel",
        i, parameters_[i].str(), shards_ == nullptr ? "whole" : "in shards of the ranks (Shard::optimizer)"));
  }
}

Tensor Optimizer::own_part(std::size_t index, const Tensor& whole) const {
  return shards_ == nullptr ? whole : shards_->shard_of(parameters_[index], whole);
}

void Optimizer::step() {
  const trace::Span span(trace::SpanKind::optimizer);
  // Everything is checked before anything changes: replicas of which one took half a step would differ from then on.
  require_own_shards();
  bool has_gradients = false;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].has_grad()) continue;
    check(i);
    has_gradients = true;
  }
  if (shards_ != nullptr && has_gradients) shards_->require_shards("optimizer: step()");
  ++steps_;
  if (shards_ == nullptr) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) update_own_part(i);
  } else if (has_gradients) {
    shards_->run([&](const Tensor& parameter) {
      const auto found = index_.find(parameter.id());  // one without an optimizer is frozen
      if (found != index_.end()) update_own_part(found->second);
    });
  }
  trace::keep_scalar("lr", learning_rate_);
}

void Optimizer::update_own_part(std::size_t index) {
  const Tensor& parameter = parameters_[index];
  if (!parameter.has_grad()) return;
  update(index, own_part(index, parameter), own_part(index, TensorInternals(parameter).grad_for_writing()));
  parameter.mark_written();
}

void Optimizer::check(std::size_t index) const {
  const Tensor& parameter = parameters_[index];
  const DeviceId of_gradient = TensorInternals(parameter).grad_for_writing().device();
  if (parameter.device() == devices_[index] && of_gradient == devices_[index]) {
    kernels(devices_[index]);  // throws if there are none
    return;
  }
  throw InvalidArgument(
      fmt::format("optimizer: parameter {} ({}) is on {}, its gradient on {}, and the optimizer's state on {}; step() "
                  "changed nothing. Move the model to its device before you make the optimizer",
                  index, parameter.str(), parameter.device().str(), of_gradient.str(), devices_[index].str()));
}

void Optimizer::zero_grad() const {
  for (const Tensor& parameter : parameters_) parameter.clear_grad();
}

void Optimizer::set_learning_rate(double rate) {
  if (!(rate >= 0) || !std::isfinite(rate)) {
    throw InvalidArgument(
        fmt::format("optimizer: learning rate {} is not a finite number of 0 or more; give such a number, and look for "
                    "a division by 0 in the schedule",
                    rate));
  }
  learning_rate_ = rate;
}

std::vector<Tensor> Optimizer::zeros_like_parameters() {
  std::vector<Tensor> result;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& parameter = parameters_[i];
    result.push_back(Tensor::zeros(own_part(i, parameter).shape(), DType::f32, parameter.device()));
    held_->add(static_cast<std::int64_t>(result.back().view().bytes()));
  }
  return result;
}

namespace {

struct Clip {
  Tensor norm;
  Tensor factor;
};

// The device of all of them; the CPU for none.
DeviceId device_of(std::span<const Tensor> parameters) {
  const DeviceId device = parameters.empty() ? DeviceId{} : parameters[0].device();
  for (const Tensor& parameter : parameters) {
    if (parameter.device() == device) continue;
    throw InvalidArgument(fmt::format("grad_norm: got parameters on {} and on {}; move the whole model to one device",
                                      device.str(), parameter.device().str()));
  }
  return device;
}

// Null where gradients are whole on each rank.
ShardedUpdate* micro_batches_of(std::span<const Tensor> parameters) {
  std::optional<ShardedUpdate*> shards;
  for (const Tensor& parameter : parameters) {
    if (!parameter.has_grad()) continue;
    ShardedUpdate* its = TensorInternals(parameter).sharded_update();
    if (its != nullptr && its->holds() == ShardedUpdate::Holds::gradients) its = nullptr;
    if (!shards) shards = its;
    if (*shards == its) continue;
    throw InvalidArgument(
        "grad_norm: got parameters of several DistributedDataParallels, and at least one of them has Shard::optimizer; "
        "call grad_norm once for each DistributedDataParallel, with its parameters only");
  }
  if (shards && *shards != nullptr) (*shards)->require_shards("grad_norm");
  return shards.value_or(nullptr);
}

// The part of a gradient that this rank reads and scales; undefined without a gradient.
Tensor own_part(const Tensor& parameter, const ShardedUpdate* shards) {
  if (shards == nullptr || !parameter.has_grad()) return parameter.grad();
  return shards->shard_of(parameter, TensorInternals(parameter).grad_for_writing());
}

// By parameter: the sum of the squares of all ranks' shards.
void sum_squares(const Tensor& squares, std::span<const Tensor> parameters, ShardedUpdate* shards) {
  const bool is_exact = shards != nullptr && squares.device() == DeviceId{};
  std::vector<ExactSquares> exact(is_exact ? parameters.size() : 0);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor gradient = own_part(parameters[i], shards);
    if (!gradient) continue;
    if (is_exact) {
      exact[i].add(gradient.data<float>(), gradient.count());
    } else {
      kernels(squares.device()).sum_squares(squares.data<double>() + i, gradient.data<float>(), gradient.count());
    }
  }
  if (shards == nullptr) return;
  if (!is_exact) return shards->sum(squares.view());
  static_assert(sizeof(ExactSquares) == sizeof(ExactSquares::words));
  const std::size_t words = exact.size() * exact.front().words.size();
  shards->sum({exact.data(), static_cast<std::int64_t>(words), DType::i64});
  for (std::size_t i = 0; i < exact.size(); ++i) squares.data<double>()[i] = exact[i].sum();
}

Clip clip_of(std::span<const Tensor> parameters, double max_norm, ShardedUpdate* shards) {
  const DeviceId device = device_of(parameters);
  const Tensor squares = Tensor::zeros({static_cast<std::int64_t>(parameters.size())}, DType::f64, device);
  sum_squares(squares, parameters, shards);
  Clip clip{Tensor::empty({}, DType::f64, device), Tensor::empty({}, DType::f32, device)};
  kernels(device).clip_factor(clip.norm.data<double>(), clip.factor.data<float>(), squares.data<double>(),
                              squares.count(), max_norm);
  return clip;
}

}  // namespace

double GradNorm::value() const {
  const Tensor norm = norm_.to(DeviceId{});
  return norm.data<double>()[0];
}

GradNorm grad_norm(std::span<const Tensor> parameters) {
  return GradNorm(clip_of(parameters, std::numeric_limits<double>::infinity(), micro_batches_of(parameters)).norm);
}

GradNorm clip_grad_norm(std::span<const Tensor> parameters, double max_norm) {
  if (!(max_norm > 0))
    throw InvalidArgument(fmt::format(
        "clip_grad_norm: max_norm {} is not above 0; give the largest norm that a step may have", max_norm));
  ShardedUpdate* const shards = micro_batches_of(parameters);
  const Clip clip = clip_of(parameters, max_norm, shards);
  for (const Tensor& parameter : parameters) {
    const Tensor gradient = own_part(parameter, shards);
    if (!gradient) continue;
    kernels(gradient.device()).scale_by(gradient.data<float>(), clip.factor.data<float>(), gradient.count());
  }
  // A device's norm is known to the host only once it waits for it.
  if (clip.norm.device() == DeviceId{}) trace::keep_scalar("grad_norm", clip.norm.data<double>()[0]);
  return GradNorm(clip.norm);
}

AdamW::AdamW(std::vector<Tensor> parameters, const AdamWOptions& options)
    : AdamW(std::vector<ParameterGroup>{{std::move(parameters), options.weight_decay}}, options) {}

AdamW::AdamW(std::vector<ParameterGroup> groups, const AdamWOptions& options)
    : Optimizer(std::move(groups), options.lr), options_(options) {
  for (const double beta : {options.beta1, options.beta2}) {
    if (!(beta >= 0 && beta < 1))
      throw InvalidArgument(
          fmt::format("AdamW: beta {} is not in [0, 1); give 0.9 for beta1 and 0.999 for beta2, as is usual", beta));
  }
  if (!(options.epsilon > 0))
    throw InvalidArgument(fmt::format("AdamW: epsilon {} is not above 0; give 1e-8, as is usual", options.epsilon));
  for (std::size_t i = 0; i < parameters().size(); ++i) steps_taken_.push_back(Tensor::zeros({1}, DType::i64));
  moment1_ = zeros_like_parameters();
  moment2_ = zeros_like_parameters();
}

std::vector<std::pair<std::string, double>> AdamW::settings() const {
  return {{"beta1", options_.beta1}, {"beta2", options_.beta2}, {"eps", options_.epsilon}};
}

std::vector<NamedState> AdamW::state() const {
  std::vector<NamedState> result;
  for (std::size_t i = 0; i < moment1_.size(); ++i) {
    result.push_back({"step", i, steps_taken_[i]});
    result.push_back({"exp_avg", i, moment1_[i]});
    result.push_back({"exp_avg_sq", i, moment2_[i]});
  }
  return result;
}

void AdamW::update(std::size_t index, const Tensor& parameter, const Tensor& gradient) {
  const auto taken = static_cast<double>(++*steps_taken_[index].data<std::int64_t>());
  const AdamWStep step{.learning_rate = learning_rate(),
                       .beta1 = options_.beta1,
                       .beta2 = options_.beta2,
                       .epsilon = options_.epsilon,
                       .weight_decay = weight_decay(index),
                       .correction1 = 1.0 - std::pow(options_.beta1, taken),
                       .correction2 = 1.0 - std::pow(options_.beta2, taken)};
  kernels(parameter.device())
      .adamw(parameter.data<float>(), gradient.data<float>(), moment1_[index].data<float>(),
             moment2_[index].data<float>(), parameter.count(), step);
}

SGD::SGD(std::vector<Tensor> parameters, const SgdOptions& options)
    : SGD(std::vector<ParameterGroup>{{std::move(parameters), options.weight_decay}}, options) {}

SGD::SGD(std::vector<ParameterGroup> groups, const SgdOptions& options)
    : Optimizer(std::move(groups), options.lr), options_(options) {
  if (!(options.momentum >= 0 && options.momentum < 1)) {
    throw InvalidArgument(
        fmt::format("SGD: momentum {} is not in [0, 1); give 0.9, as is usual, or 0 for none", options.momentum));
  }
  if (options.nesterov && options.momentum == 0)
    throw InvalidArgument(
        "SGD: nesterov needs a momentum above 0, and momentum is 0; give 0.9, as is usual, or leave nesterov out");
  if (options.momentum > 0) velocity_ = zeros_like_parameters();
}

std::vector<std::pair<std::string, double>> SGD::settings() const {
  return {{"momentum", options_.momentum}, {"nesterov", options_.nesterov ? 1.0 : 0.0}};
}

std::vector<NamedState> SGD::state() const {
  std::vector<NamedState> result;
  for (std::size_t i = 0; i < velocity_.size(); ++i) result.push_back({"momentum_buffer", i, velocity_[i]});
  return result;
}

void SGD::update(std::size_t index, const Tensor& parameter, const Tensor& gradient) {
  const SgdStep step{.learning_rate = learning_rate(),
                     .momentum = options_.momentum,
                     .weight_decay = weight_decay(index),
                     .nesterov = options_.nesterov};
  kernels(parameter.device())
      .sgd(parameter.data<float>(), gradient.data<float>(),
           velocity_.empty() ? nullptr : velocity_[index].data<float>(), parameter.count(), step);
}

}  // namespace lockstep::optim
