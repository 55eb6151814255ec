// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/optimizer.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "runtime/tensor/kernels.h"

namespace lockstep::optim {

AdamW::AdamW(std::vector<Tensor> parameters, const AdamWOptions& options)
    : AdamW(std::vector<ParameterGroup>{{std::move(parameters), options.weight_decay}}, options) {}

AdamW::AdamW(std::vector<ParameterGroup> groups, const AdamWOptions& options)
    : Optimizer(std::move(groups), options.lr), options_(options) {
  for (const double beta : {options.beta1, options.beta2}) {
    if (!(beta >= 0 && beta < 1)) throw InvalidArgument(fmt::format("AdamW: beta {} is not in [0, 1)", beta));
  }
  if (!(options.epsilon > 0)) throw InvalidArgument(fmt::format("AdamW: epsilon {} is not above 0", options.epsilon));
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

}  // namespace lockstep::optim
