// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/autocast.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/libtorch/operators.h"

namespace lockstep::libtorch {
namespace {

namespace autocast = at::autocast;

// Before 2.4 each device has functions of its own, which 2.4 deprecates.
#if LOCKSTEP_TORCH_AT_LEAST(2, 4)
bool is_known(c10::DeviceType device) { return autocast::is_autocast_available(device); }
bool is_enabled(c10::DeviceType device) { return autocast::is_autocast_enabled(device); }
c10::ScalarType dtype_on(c10::DeviceType device) { return autocast::get_autocast_dtype(device); }
void set(c10::DeviceType device, bool enabled, c10::ScalarType dtype) {
  autocast::set_autocast_enabled(device, enabled);
  autocast::set_autocast_dtype(device, dtype);
}
#else
bool is_known(c10::DeviceType device) { return device == c10::kCUDA || device == c10::kCPU; }
bool is_enabled(c10::DeviceType device) {
  return device == c10::kCPU ? autocast::is_cpu_enabled() : autocast::is_enabled();
}
c10::ScalarType dtype_on(c10::DeviceType device) {
  return device == c10::kCPU ? autocast::get_autocast_cpu_dtype() : autocast::get_autocast_gpu_dtype();
}
void set(c10::DeviceType device, bool enabled, c10::ScalarType dtype) {
  if (device == c10::kCPU) {
    autocast::set_cpu_enabled(enabled);
    autocast::set_autocast_cpu_dtype(dtype);
  } else {
    autocast::set_enabled(enabled);
    autocast::set_autocast_gpu_dtype(dtype);
  }
}
#endif

// LibTorch 1.13 has operators in bfloat16 alone on the CPU.
bool has_dtype(c10::DeviceType device, c10::ScalarType dtype) {
  if (dtype == c10::kBFloat16) return true;
  return dtype == c10::kHalf && (device != c10::kCPU || LOCKSTEP_TORCH_AT_LEAST(2, 0));
}

c10::DeviceType checked(c10::DeviceType device, c10::ScalarType dtype) {
  if (!is_known(device)) {
    throw InvalidArgument(
        fmt::format("Autocast: the device is {}, for which LibTorch {} has no autocast; give at::kCUDA or at::kCPU",
                    c10::DeviceTypeName(device, /*lower_case=*/true), TORCH_VERSION));
  }
  if (!has_dtype(device, dtype)) {
    throw InvalidArgument(
        fmt::format("Autocast: the dtype is {}, in which LibTorch {} has no autocast for {}; give at::kBFloat16{}",
                    c10::toString(dtype), TORCH_VERSION, c10::DeviceTypeName(device, /*lower_case=*/true),
                    has_dtype(device, c10::kHalf) ? " or at::kHalf" : ""));
  }
  return device;
}

}  // namespace

Autocast::Autocast(c10::DeviceType device, c10::ScalarType dtype, const AutocastOptions& options)
    : device_(checked(device, dtype)),
      was_enabled_(is_enabled(device)),
      previous_dtype_(dtype_on(device)),
      was_cache_enabled_(autocast::is_autocast_cache_enabled()) {
  set(device, options.enabled, dtype);
  autocast::set_autocast_cache_enabled(options.cache_enabled);
  autocast::increment_nesting();
}

Autocast::~Autocast() {
  // The casts of the outermost scope's parameters are stale once an optimizer has written them.
  if (autocast::decrement_nesting() == 0) autocast::clear_cache();
  set(device_, was_enabled_, previous_dtype_);
  autocast::set_autocast_cache_enabled(was_cache_enabled_);
}

}  // namespace lockstep::libtorch
