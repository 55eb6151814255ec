// SPDX-License-Identifier: Apache-2.0
// decay_groups() divides parameters into groups with and without weight decay.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

namespace lockstep::libtorch {

// Returns two parameter groups for an optimizer. The first group holds the parameters of two or more dimensions
// (matrices, kernels), and has `options`. The second group holds the parameters of fewer than two dimensions (biases,
// gains), and has `options` without weight decay. `Options` is torch::optim::AdamWOptions or another class with
// weight_decay().
//
//   const auto options = torch::optim::AdamWOptions(3e-4).weight_decay(0.01);
//   torch::optim::AdamW optimizer(lockstep::libtorch::decay_groups(ddp.parameters(), options), options);
template <typename Options>
std::vector<::torch::optim::OptimizerParamGroup> decay_groups(const std::vector<at::Tensor>& parameters,
                                                              Options options) {
  std::vector<::torch::optim::OptimizerParamGroup> groups(2, std::vector<at::Tensor>());
  for (const at::Tensor& parameter : parameters) groups[parameter.dim() < 2].params().push_back(parameter);
  groups[0].set_options(std::make_unique<Options>(options));
  options.weight_decay(0);
  groups[1].set_options(std::make_unique<Options>(options));
  return groups;
}

}  // namespace lockstep::libtorch
