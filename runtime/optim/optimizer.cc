// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/optimizer.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/trace/span.h"
#include "runtime/tensor/kernels.h"
#include "runtime/tensor/sharded_update.h"
#include "runtime/trace/held_memory.h"
#include "runtime/trace/process_trace.h"

namespace lockstep::optim {

Optimizer::Optimizer(std::vector<ParameterGroup> groups, double learning_rate)
    : learning_rate_(0), held_(std::make_shared<trace::HeldMemory>(trace::Held::optimizer_state)) {
  set_learning_rate(learning_rate);
  for (ParameterGroup& group : groups) {
    if (!(group.weight_decay >= 0)) {
      throw InvalidArgument(fmt::format("optimizer: weight decay {} is not 0 or more", group.weight_decay));
    }
    for (Tensor& parameter : group.parameters) {
      if (!parameter || !parameter.requires_grad() || !parameter.is_leaf()) {
        throw InvalidArgument(fmt::format("optimizer: parameter {} ({}) is not a leaf that requires a gradient",
                                          parameters_.size(), parameter.str()));
      }
      if (!index_.emplace(parameter.id(), parameters_.size()).second) {
        throw InvalidArgument(
            fmt::format("optimizer: parameter {} ({}) is there twice", parameters_.size(), parameter.str()));
      }
      if (!parameters_.empty() && parameter.sharded_update() != parameters_[0].sharded_update()) {
        throw InvalidArgument(fmt::format(
            "optimizer: parameter {} ({}) is not of the DistributedDataParallel that parameter 0 is of, and "
            "one of them has Shard::optimizer; give each its own optimizer",
            parameters_.size(), parameter.str()));
      }
      devices_.push_back(parameter.device());
      parameters_.push_back(std::move(parameter));
      weight_decay_.push_back(group.weight_decay);
    }
  }
  shards_ = parameters_.empty() ? nullptr : parameters_[0].sharded_update();
  if (shards_ != nullptr) shards_->claim(this);
}

Optimizer::~Optimizer() {
  if (shards_ != nullptr && parameters_[0].sharded_update() == shards_ && shards_->is_claimed_by(this)) {
    shards_->release();
  }
}

// The DistributedDataParallel may be gone, and another one be in its place.
void Optimizer::require_own_shards() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    ShardedUpdate* const now = parameters_[i].sharded_update();
    if (now == shards_ && (now == nullptr || now->is_claimed_by(this))) continue;
    throw InvalidArgument(fmt::format(
        "optimizer: parameter {} ({}) was {} when the optimizer was made, and is not any more; nothing was changed. "
        "Make "
        "the optimizer behind the DistributedDataParallel, and end it before",
        i, parameters_[i].str(), shards_ == nullptr ? "whole" : "in shards of the ranks (Shard::optimizer)"));
  }
}

Tensor Optimizer::own_part(std::size_t index, const Tensor& whole) const {
  return shards_ == nullptr ? whole : shards_->share_of(parameters_[index], whole);
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
  if (shards_ != nullptr && has_gradients) shards_->require_shares("optimizer: step()");
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
  update(index, own_part(index, parameter), own_part(index, parameter.grad_for_writing()));
  parameter.mark_written();
}

void Optimizer::check(std::size_t index) const {
  const Tensor& parameter = parameters_[index];
  const DeviceId of_gradient = parameter.grad_for_writing().device();
  if (parameter.device() == devices_[index] && of_gradient == devices_[index]) {
    kernels(devices_[index]);  // throws if there are none
    return;
  }
  throw InvalidArgument(fmt::format(
      "optimizer: parameter {} ({}) is on {} and its gradient on {}, the optimizer's state on {}; nothing was "
      "changed. Move the model before the optimizer is made",
      index, parameter.str(), parameter.device().str(), of_gradient.str(), devices_[index].str()));
}

void Optimizer::zero_grad() const {
  for (const Tensor& parameter : parameters_) parameter.clear_grad();
}

void Optimizer::set_learning_rate(double rate) {
  if (!(rate >= 0) || !std::isfinite(rate)) {
    throw InvalidArgument(fmt::format("optimizer: learning rate {} is not a finite number of 0 or more", rate));
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

}  // namespace lockstep::optim
