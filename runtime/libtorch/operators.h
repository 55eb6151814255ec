// SPDX-License-Identifier: Apache-2.0
// Differences between LibTorch's versions and devices: operators that some lack, and copies between devices.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/version.h>

#define LOCKSTEP_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace lockstep::libtorch {

// `name`: such as "aten::_fused_sgd_". Whether LibTorch has that operator for the device of `like`.
inline bool has_operator(const char* name, const at::Tensor& like) {
  const auto found = c10::Dispatcher::singleton().findSchema({name, ""});
  return found && found->hasKernelForDispatchKey(c10::legacyExtractDispatchKey(like.key_set()));
}

// The tensor with dtype and device of `options`. The host waits only for a copy into its own memory: torch copies
// asynchronously there too where it may, and the host would read memory that is still being written.
inline at::Tensor moved(const at::Tensor& tensor, const at::TensorOptions& options) {
  return tensor.to(options, /*non_blocking=*/!options.device().is_cpu());
}

}  // namespace lockstep::libtorch
