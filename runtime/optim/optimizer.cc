// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/optimizer.h"

#include <fmt/format.h>

#include <cmath>
#include <unordered_set>

#include "lockstep/base/error.h"
#include "lockstep/trace/span.h"
#include "runtime/tensor/kernels.h"
#include "runtime/trace/process_trace.h"

namespace lockstep::optim {

Optimizer::Optimizer(std::vector<ParameterGroup> groups, double learning_rate) : learning_rate_(0) {
  set_learning_rate(learning_rate);
  std::unordered_set<const void*> seen;
  for (ParameterGroup& group : groups) {
    if (!(group.weight_decay >= 0)) {
      throw InvalidArgument(fmt::format("optimizer: weight decay {} is not 0 or more", group.weight_decay));
    }
    for (Tensor& parameter : group.parameters) {
      if (!parameter || !parameter.requires_grad() || !parameter.is_leaf()) {
        throw InvalidArgument(fmt::format("optimizer: parameter {} ({}) is not a leaf that requires a gradient",
                                          parameters_.size(), parameter.str()));
      }
      if (!seen.insert(parameter.id()).second) {
        throw InvalidArgument(
            fmt::format("optimizer: parameter {} ({}) is there twice", parameters_.size(), parameter.str()));
      }
      devices_.push_back(parameter.device());
      parameters_.push_back(std::move(parameter));
      weight_decay_.push_back(group.weight_decay);
    }
  }
}

void Optimizer::step() {
  const trace::Span span(trace::SpanKind::optimizer);
  // Everything is checked before anything changes: replicas of which one took half a step would differ from then on.
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (const Tensor gradient = parameters_[i].grad()) check(i, gradient);
  }
  ++steps_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor gradient = parameters_[i].grad();
    if (!gradient) continue;
    update(i, parameters_[i], gradient);
    parameters_[i].mark_written();
  }
  trace::keep_scalar("lr", learning_rate_);
}

void Optimizer::check(std::size_t index, const Tensor& gradient) const {
  const Tensor& parameter = parameters_[index];
  if (parameter.device() == devices_[index] && gradient.device() == devices_[index]) {
    kernels(devices_[index]);  // throws if there are none
    return;
  }
  throw InvalidArgument(fmt::format(
      "optimizer: parameter {} ({}) is on {} and its gradient on {}, the optimizer's state on {}; nothing was "
      "changed. Move the model before the optimizer is made",
      index, parameter.str(), parameter.device().str(), gradient.device().str(), devices_[index].str()));
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

std::vector<Tensor> Optimizer::zeros_like_parameters() const {
  std::vector<Tensor> result;
  for (const Tensor& parameter : parameters_) {
    result.push_back(Tensor::zeros(parameter.shape(), DType::f32, parameter.device()));
  }
  return result;
}

}  // namespace lockstep::optim
