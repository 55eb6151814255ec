// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/optimizer.h"

#include <fmt/format.h>

#include <limits>

#include "lockstep/base/error.h"
#include "runtime/tensor/kernels.h"
#include "runtime/trace/process_trace.h"

namespace lockstep::optim {
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
    throw InvalidArgument(fmt::format("grad_norm: parameters on {} and on {}; move the whole model to one device",
                                      device.str(), parameter.device().str()));
  }
  return device;
}

Clip clip_of(std::span<const Tensor> parameters, double max_norm) {
  const DeviceId device = device_of(parameters);
  Kernels& k = kernels(device);
  const Tensor squares = Tensor::zeros({static_cast<std::int64_t>(parameters.size())}, DType::f64, device);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor gradient = parameters[i].grad();
    if (gradient) k.sum_squares(squares.data<double>() + i, gradient.data<float>(), gradient.count());
  }
  Clip clip{Tensor::empty({}, DType::f64, device), Tensor::empty({}, DType::f32, device)};
  k.clip_factor(clip.norm.data<double>(), clip.factor.data<float>(), squares.data<double>(), squares.count(), max_norm);
  return clip;
}

}  // namespace

double GradNorm::value() const { return norm_.to(DeviceId{}).data<double>()[0]; }

GradNorm grad_norm(std::span<const Tensor> parameters) {
  return GradNorm(clip_of(parameters, std::numeric_limits<double>::infinity()).norm);
}

GradNorm clip_grad_norm(std::span<const Tensor> parameters, double max_norm) {
  if (!(max_norm > 0)) throw InvalidArgument(fmt::format("clip_grad_norm: max_norm {} is not above 0", max_norm));
  const Clip clip = clip_of(parameters, max_norm);
  for (const Tensor& parameter : parameters) {
    const Tensor gradient = parameter.grad();
    if (!gradient) continue;
    kernels(gradient.device()).scale_by(gradient.data<float>(), clip.factor.data<float>(), gradient.count());
  }
  // A device's norm is known to the host only once it waits for it.
  if (clip.norm.device() == DeviceId{}) trace::keep_scalar("grad_norm", clip.norm.data<double>()[0]);
  return GradNorm(clip.norm);
}

}  // namespace lockstep::optim
