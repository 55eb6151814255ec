// SPDX-License-Identifier: Apache-2.0
// Why CUDA shows no device, in words for the user.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <string>

namespace lockstep::cuda {

// `error` of cudaGetDeviceCount; `driver_version` as CUDA counts, 0 if there is no driver; the value of
// CUDA_VISIBLE_DEVICES, if it is set. A sentence with the remedy behind a semicolon. Pure.
std::string why_no_device(cudaError_t error, int driver_version, const std::optional<std::string>& visible_devices);

// "13.0" of 13000.
std::string version_text(int version);

}  // namespace lockstep::cuda
