// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/optimizer.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/tensor/kernels.h"

namespace lockstep::optim {

SGD::SGD(std::vector<Tensor> parameters, const SgdOptions& options)
    : SGD(std::vector<ParameterGroup>{{std::move(parameters), options.weight_decay}}, options) {}

SGD::SGD(std::vector<ParameterGroup> groups, const SgdOptions& options)
    : Optimizer(std::move(groups), options.lr), options_(options) {
  if (!(options.momentum >= 0 && options.momentum < 1)) {
    throw InvalidArgument(fmt::format("SGD: momentum {} is not in [0, 1)", options.momentum));
  }
  if (options.nesterov && options.momentum == 0) throw InvalidArgument("SGD: nesterov needs a momentum above 0");
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
