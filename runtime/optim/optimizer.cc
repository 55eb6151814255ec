#include "runtime/optim/optimizer.h"

#include <fmt/format.h>

#include <cmath>
#include <unordered_set>

#include "runtime/base/error.h"

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
        throw InvalidArgument(fmt::format("optimizer: parameter {} ({}) is no leaf that requires a gradient",
                                          parameters_.size(), parameter.str()));
      }
      if (!seen.insert(parameter.id()).second) {
        throw InvalidArgument(
            fmt::format("optimizer: parameter {} ({}) is there twice", parameters_.size(), parameter.str()));
      }
      parameters_.push_back(std::move(parameter));
      weight_decay_.push_back(group.weight_decay);
    }
  }
}

void Optimizer::step() {
  ++steps_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (const Tensor gradient = parameters_[i].grad()) update(i, parameters_[i], gradient);
  }
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
