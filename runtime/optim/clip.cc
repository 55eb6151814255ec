// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/clip.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "runtime/tensor/kernels.h"

namespace lockstep::optim {
namespace {

double squares(const Tensor& parameter) {
  const Tensor gradient = parameter.grad();
  return gradient ? kernels(gradient.device()).sum_squares(gradient.data<float>(), gradient.count()) : 0.0;
}

}  // namespace

double grad_norm(std::span<const Tensor> parameters) {
  double total = 0;
  for (const Tensor& parameter : parameters) total += squares(parameter);
  return std::sqrt(total);
}

double clip_grad_norm(std::span<const Tensor> parameters, double max_norm) {
  if (!(max_norm > 0)) throw InvalidArgument(fmt::format("clip_grad_norm: max_norm {} is not above 0", max_norm));
  const double norm = grad_norm(parameters);
  if (!std::isfinite(norm)) {
    std::size_t first = 0;
    while (std::isfinite(squares(parameters[first]))) ++first;
    throw Error(
        fmt::format("clip_grad_norm: the gradient's norm is {}; the first parameter with such a gradient is "
                    "number {} ({}). Lower the learning rate, or look for a division by 0 or an overflow",
                    norm, first, parameters[first].str()));
  }
  if (norm > max_norm) {
    const auto factor = static_cast<float>(max_norm / norm);
    for (const Tensor& parameter : parameters) {
      const Tensor gradient = parameter.grad();
      if (!gradient) continue;
      float* data = gradient.data<float>();
      kernels(gradient.device()).scale({data, false}, data, factor, gradient.count());
    }
  }
  return norm;
}

}  // namespace lockstep::optim
