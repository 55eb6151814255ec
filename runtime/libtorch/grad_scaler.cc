// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/grad_scaler.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

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

void check_gradient(const at::Tensor& gradient) {
  if (gradient.layout() == at::kStrided && gradient.scalar_type() != at::kHalf) return;
  throw InvalidArgument(
      fmt::format("GradScaler: a gradient is {}, which can't be unscaled; keep trained parameters dense and in "
                  "float32, and compute in float16 under autocast",
                  gradient.layout() == at::kStrided ? "float16" : "sparse"));
}

// All of them are checked before one is written.
std::vector<at::Tensor> gradients_of(const ::torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> gradients;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      check_gradient(parameter.grad());
      gradients.push_back(parameter.grad());
    }
  }
  if (!gradients.empty()) return gradients;
  throw InvalidArgument(
      "GradScaler: no parameter of the optimizer has a gradient; call backward() on what scale() returned before");
}

// True if an Inf or NaN is in one of them. The host waits once for each device.
bool multiply(const std::vector<at::Tensor>& gradients, double factor) {
  std::map<std::string, at::Tensor> are_finite;  // by device
  for (const at::Tensor& gradient : gradients) {
    gradient.mul_(factor);
    at::Tensor& here = are_finite[gradient.device().str()];
    const at::Tensor all = at::isfinite(gradient).all();
    here = here.defined() ? here.logical_and(all) : all;
  }
  return !std::all_of(are_finite.begin(), are_finite.end(),
                      [](const auto& device) { return device.second.template item<bool>(); });
}

constexpr const char* kScale = "scale";
constexpr const char* kGrowthTracker = "_growth_tracker";

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options), scale_(options.init_scale) {
  check_options(options);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled) return loss;
  return loss.to(at::promote_types(loss.scalar_type(), at::kFloat)) * scale_;
}

void GradScaler::unscale_(::torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  Seen& seen = seen_[&optimizer];
  if (seen.stage != Stage::ready) {
    throw InvalidArgument(
        fmt::format("GradScaler: unscale_() {} this optimizer since the last update(); call it once, "
                    "before step()",
                    seen.stage == Stage::unscaled ? "has been called for" : "comes after step() of"));
  }
  const at::NoGradGuard no_grad;
  seen.found_inf = multiply(gradients_of(optimizer), 1 / scale_);
  seen.stage = Stage::unscaled;
}

bool GradScaler::step(::torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  if (seen_[&optimizer].stage == Stage::stepped) {
    throw InvalidArgument(
        "GradScaler: step() has been called for this optimizer since the last update(); call update() "
        "after the steps of all optimizers");
  }
  if (seen_[&optimizer].stage == Stage::ready) unscale_(optimizer);
  Seen& seen = seen_[&optimizer];
  if (!seen.found_inf) optimizer.step();
  seen.stage = Stage::stepped;
  return !seen.found_inf;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  if (std::none_of(seen_.begin(), seen_.end(), [](const auto& it) { return it.second.stage != Stage::ready; })) {
    throw InvalidArgument("GradScaler: update() without a step() or unscale_() before; call it once behind them");
  }
  const bool found_inf = std::any_of(seen_.begin(), seen_.end(), [](const auto& it) { return it.second.found_inf; });
  seen_.clear();
  if (found_inf) {
    scale_ *= options_.backoff_factor;
    growth_tracker_ = 0;
  } else if (++growth_tracker_ >= options_.growth_interval) {
    const double grown = scale_ * options_.growth_factor;
    if (grown <= std::numeric_limits<float>::max()) scale_ = grown;  // an infinite scale would never come back
    growth_tracker_ = 0;
  }
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  check_scale("new_scale", new_scale);
  seen_.clear();
  scale_ = new_scale;
}

void GradScaler::save(::torch::serialize::OutputArchive& archive) const {
  archive.write(kScale, at::scalar_tensor(scale_, at::kDouble), /*is_buffer=*/true);
  archive.write(kGrowthTracker, at::scalar_tensor(growth_tracker_, at::kLong), /*is_buffer=*/true);
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
  scale_ = state.scale;
  growth_tracker_ = state.growth_tracker;
  seen_.clear();
}

}  // namespace lockstep::libtorch
