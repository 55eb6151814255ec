// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/grad_scaler.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/libtorch/fused_optimizers.h"
#include "lockstep/libtorch/sharded_optimizer.h"
#include "runtime/libtorch/operators.h"

namespace lockstep::libtorch {
namespace {

void check(bool is_right, const char* name, double value, const char* wanted) {
  if (!is_right) throw InvalidArgument(fmt::format("GradScaler: {} is {}; give {}", name, value, wanted));
}

void check_scale(const char* name, double scale) {
  check(scale > 0 && std::isfinite(scale), name, scale, "a finite number above 0");
}

void check_options(const GradScalerOptions& options) {
  check_scale("init_scale", options.init_scale);
  check(options.growth_factor > 1, "growth_factor", options.growth_factor, "more than 1");
  check(options.backoff_factor > 0 && options.backoff_factor < 1, "backoff_factor", options.backoff_factor,
        "a number between 0 and 1");
  check(options.growth_interval >= 1, "growth_interval", static_cast<double>(options.growth_interval), "1 or more");
}

void check_gradient(const at::Tensor& gradient, bool may_be_half, std::size_t parameter, std::size_t group) {
  const bool is_dense = gradient.layout() == at::kStrided;
  if (is_dense && (may_be_half || gradient.scalar_type() != at::kHalf)) return;
  throw InvalidArgument(fmt::format(
      "GradScaler: the gradient of parameter {} of the optimizer's group {} is {}, which can't be unscaled; "
      "keep trained parameters dense and in float32, and compute in float16 under autocast",
      parameter, group, is_dense ? "float16" : "sparse"));
}

// All of them are checked before one is written.
std::vector<at::Tensor> gradients_of(const ::torch::optim::Optimizer& optimizer, bool may_be_half) {
  std::vector<at::Tensor> gradients;
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto& parameters = optimizer.param_groups()[g].params();
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      if (!parameters[k].grad().defined()) continue;
      check_gradient(parameters[k].grad(), may_be_half, k, g);
      gradients.push_back(parameters[k].grad());
    }
  }
  if (!gradients.empty()) return gradients;
  throw InvalidArgument(
      "GradScaler: no parameter of the optimizer has a gradient; first call backward() on what scale() returned");
}

// Multiplies gradients of one device and dtype; `found_inf` becomes 1 if an Inf or NaN is in one of them.
void multiply(const std::vector<at::Tensor>& gradients, const at::Tensor& factor, at::Tensor& found_inf) {
  // LibTorch 1.13 has none for the CPU, and none has one for CUDA in bfloat16.
  const bool is_bfloat16_on_cuda = gradients.front().is_cuda() && gradients.front().scalar_type() == at::kBFloat16;
  if (!is_bfloat16_on_cuda && has_operator("aten::_amp_foreach_non_finite_check_and_unscale_", gradients.front())) {
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, factor);
    return;
  }
  for (const at::Tensor& gradient : gradients) {
    gradient.mul_(factor);
    // x - x is 0 for a finite x, and NaN for any other.
    found_inf = at::maximum(found_inf, gradient.sub(gradient).ne(0).any().to(at::kFloat));
  }
}

// Multiplies the gradients by `factor`. Returns a float32 scalar on the device of `factor`, not 0 if an Inf or NaN is
// in one of them. The host waits only if `factor` is on the CPU and a gradient is not.
at::Tensor multiply_all(const std::vector<at::Tensor>& gradients, const at::Tensor& factor) {
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> alike;
  for (const at::Tensor& gradient : gradients)
    alike[{gradient.device().str(), gradient.scalar_type()}].push_back(gradient);
  at::Tensor all = at::zeros({}, factor.options());
  for (const auto& [key, some] : alike) {
    const auto options = some.front().options().dtype(at::kFloat);
    at::Tensor found_inf = at::zeros({}, options);
    multiply(some, moved(factor, options), found_inf);
    all = at::maximum(all, moved(found_inf, all.options()));
  }
  return all;
}

// Divides gradients by the scale, as the fused kernels do: unless the scale is a power of two, a product with its
// reciprocal has other bits. Returns what multiply_all() returns.
at::Tensor divide_all(const std::vector<at::Tensor>& gradients, const at::Tensor& scale) {
  const at::Tensor found_inf = multiply_all(gradients, at::ones_like(scale));
  for (const at::Tensor& gradient : gradients) {
    gradient.div_(moved(scale, scale.options().device(gradient.device())));
  }
  return found_inf;
}

// Null where parameters are whole.
const OptimizerShards* shards_of(const ::torch::optim::Optimizer& optimizer) {
  const auto* const shards = dynamic_cast<const OptimizerShards*>(&optimizer);
  return shards != nullptr && shards->are_cut() ? shards : nullptr;
}

void put_shards(::torch::optim::Optimizer& optimizer) {
  if (const OptimizerShards* const shards = shards_of(optimizer)) shards->put_shards(optimizer.param_groups());
}

// A rank looks at its shard alone.
at::Tensor agreed(const ::torch::optim::Optimizer& optimizer, const at::Tensor& found_inf) {
  const OptimizerShards* const shards = shards_of(optimizer);
  return shards == nullptr ? found_inf : shards->agreed(found_inf);
}

constexpr const char* kScale = "scale";
constexpr const char* kGrowthTracker = "_growth_tracker";

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options) {
  check_options(options);
  set(options.init_scale, 0);
}

void GradScaler::set(double scale, std::int64_t growth_tracker) {
  tensors_ = {at::scalar_tensor(scale, at::kFloat), at::scalar_tensor(growth_tracker, at::kLong)};
}

GradScaler::State GradScaler::read(const Tensors& tensors) {
  return {tensors.scale.item<double>(), tensors.growth_tracker.item<std::int64_t>()};
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled) return loss;
  const auto move = [&](at::Tensor& tensor) { tensor = moved(tensor, tensor.options().device(loss.device())); };
  move(tensors_.scale);
  move(tensors_.growth_tracker);
  return loss.to(at::promote_types(loss.scalar_type(), at::kFloat)) * tensors_.scale;
}

void GradScaler::unscale_(::torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  Seen& seen = seen_[&optimizer];
  if (seen.stage != Stage::ready) {
    throw InvalidArgument(fmt::format(
        "GradScaler: unscale_() {} this optimizer since the last update(); call unscale_() once, before step()",
        seen.stage == Stage::unscaled ? "has been called for" : "comes after step() of"));
  }
  put_shards(optimizer);
  const at::NoGradGuard no_grad;
  const at::Tensor factor = tensors_.scale.to(at::kDouble).reciprocal().to(at::kFloat);
  seen.found_inf = agreed(optimizer, multiply_all(gradients_of(optimizer, /*may_be_half=*/false), factor));
  seen.stage = Stage::unscaled;
}

at::Tensor GradScaler::step(::torch::optim::Optimizer& optimizer) {
  at::autocast::clear_cache();  // of casts of the values before the step
  if (!options_.enabled) {
    optimizer.step();
    return at::zeros({});
  }
  Seen& seen = seen_[&optimizer];
  if (seen.stage == Stage::stepped) {
    throw InvalidArgument(
        "GradScaler: step() was already called for this optimizer since the last update(); call update() after the "
        "steps of all optimizers, and before the next step()");
  }
  auto* const fused = dynamic_cast<FusedOptimizer*>(&optimizer);
  if (fused != nullptr && fused->is_fused() && shards_of(optimizer) == nullptr) {
    const bool is_scaled = seen.stage == Stage::ready;
    if (is_scaled) {
      const at::NoGradGuard no_grad;
      seen.found_inf = multiply_all(gradients_of(optimizer, /*may_be_half=*/true), at::ones_like(tensors_.scale));
    }
    fused->step_scaled(is_scaled ? tensors_.scale : at::Tensor(), seen.found_inf);
  } else {
    if (seen.stage == Stage::ready && fused != nullptr && fused->is_fused()) {
      put_shards(optimizer);
      const at::NoGradGuard no_grad;
      const auto gradients = gradients_of(optimizer, /*may_be_half=*/false);
      seen.found_inf = agreed(optimizer, divide_all(gradients, tensors_.scale));
    } else if (seen.stage == Stage::ready) {
      unscale_(optimizer);
    }
    if (seen.found_inf.item<float>() == 0) optimizer.step();
  }
  seen.stage = Stage::stepped;
  return seen.found_inf;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  if (std::none_of(seen_.begin(), seen_.end(), [](const auto& it) { return it.second.stage != Stage::ready; })) {
    throw InvalidArgument(
        "GradScaler: update() was called without a step() or unscale_() before; call update() once, after the steps of "
        "all optimizers");
  }
  const at::NoGradGuard no_grad;
  const auto& [scale, tracker] = tensors_;
  at::Tensor found_inf = at::zeros_like(scale);
  for (const auto& [optimizer, seen] : seen_) {
    if (seen.found_inf.defined()) found_inf = at::maximum(found_inf, moved(seen.found_inf, scale.options()));
  }
  seen_.clear();
  const at::Tensor is_bad = found_inf.ne(0), is_due = (tracker + 1).ge(options_.growth_interval);
  // An infinite scale would never come back.
  const at::Tensor is_finite = (scale * options_.growth_factor).le(std::numeric_limits<float>::max());
  const at::Tensor grows = is_due.bitwise_and(is_finite).bitwise_and(is_bad.bitwise_not());
  const at::Tensor stays = is_bad.bitwise_or(grows).bitwise_not();
  tensors_ = {scale * (is_bad.to(at::kFloat) * options_.backoff_factor + grows.to(at::kFloat) * options_.growth_factor +
                       stays.to(at::kFloat)),
              (tracker + 1) * is_bad.bitwise_or(is_due).bitwise_not().to(at::kLong)};
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  check_scale("new_scale", new_scale);
  seen_.clear();
  tensors_.scale = at::full_like(tensors_.scale, new_scale);
}

void GradScaler::save(::torch::serialize::OutputArchive& archive) const {
  archive.write(kScale, at::scalar_tensor(state().scale, at::kDouble), /*is_buffer=*/true);
  archive.write(kGrowthTracker, at::scalar_tensor(state().growth_tracker, at::kLong), /*is_buffer=*/true);
}

void GradScaler::load(::torch::serialize::InputArchive& archive) {
  at::Tensor read_scale, read_tracker;
  archive.read(kScale, read_scale, /*is_buffer=*/true);
  archive.read(kGrowthTracker, read_tracker, /*is_buffer=*/true);
  const double loaded = read_scale.item<double>();
  check_scale("the scale in the archive", loaded);
  set_state({loaded, read_tracker.item<std::int64_t>()});
}

void GradScaler::set_state(const State& state) {
  check_scale("the scale of a state", state.scale);
  set(state.scale, state.growth_tracker);
  seen_.clear();
}

}  // namespace lockstep::libtorch
