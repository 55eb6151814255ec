// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/optimizer.h"

#include <fmt/format.h>

#include <limits>
#include <optional>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/exact_squares.h"
#include "runtime/tensor/kernels.h"
#include "runtime/tensor/sharded_update.h"
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

// Null where gradients are whole on each rank.
ShardedUpdate* shards_of(std::span<const Tensor> parameters) {
  std::optional<ShardedUpdate*> shards;
  for (const Tensor& parameter : parameters) {
    if (!parameter.has_grad()) continue;
    ShardedUpdate* its = parameter.sharded_update();
    if (its != nullptr && its->holds() == ShardedUpdate::Holds::gradients) its = nullptr;
    if (!shards) shards = its;
    if (*shards == its) continue;
    throw InvalidArgument(
        "grad_norm: parameters of several DistributedDataParallels, of which one has Shard::optimizer; take the norm "
        "of "
        "each by itself");
  }
  if (shards && *shards != nullptr) (*shards)->require_shares("grad_norm");
  return shards.value_or(nullptr);
}

// The part of a gradient that this rank reads and scales; undefined without a gradient.
Tensor own_part(const Tensor& parameter, const ShardedUpdate* shards) {
  if (shards == nullptr || !parameter.has_grad()) return parameter.grad();
  return shards->share_of(parameter, parameter.grad_for_writing());
}

// By parameter: the sum of the squares of all ranks' shares.
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
  return GradNorm(clip_of(parameters, std::numeric_limits<double>::infinity(), shards_of(parameters)).norm);
}

GradNorm clip_grad_norm(std::span<const Tensor> parameters, double max_norm) {
  if (!(max_norm > 0)) throw InvalidArgument(fmt::format("clip_grad_norm: max_norm {} is not above 0", max_norm));
  ShardedUpdate* const shards = shards_of(parameters);
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

}  // namespace lockstep::optim
