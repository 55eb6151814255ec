// SPDX-License-Identifier: Apache-2.0
// Launches of kernels, in the order of `stream`, on the current device. kernels.cu has them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/device/device_runtime.h"

namespace lockstep::cuda {

// Loads all kernels on the current device, which the first launch of each would do otherwise, and wait for what the
// device is at while it does (CUDA C++ Programming Guide, lazy loading): with a collective under way on the device and
// another rank waiting for what comes behind the launch, for ever.
cudaError_t load_kernels();
// As divide_on_host (device/divide.h), with the divisor on the device, or null for 1: bit for bit, but for a NaN, which
// stays one and may come out as another (its sign and payload are the hardware's).
cudaError_t launch_divide(void* data, std::int64_t count, DType dtype, double factor, const std::int64_t* divisor,
                          OverZero over_zero, cudaStream_t stream);
// As DeviceRuntime::first_not_finite.
cudaError_t launch_first_not_finite(const void* data, std::int64_t count, DType dtype, std::int64_t* first,
                                    cudaStream_t stream);
// As convert_on_host (device/convert.h), bit for bit but for NaNs, whose payloads are the hardware's.
cudaError_t launch_convert(const void* from, DType from_dtype, void* to, DType to_dtype, std::int64_t count,
                           cudaStream_t stream);
// As sum_rows_on_host (device/sum_rows.h), in the same way; at most kMostSummedRows.
cudaError_t launch_sum_rows(const void* rows, std::ptrdiff_t stride, std::span<const std::uint8_t> merges, void* to,
                            std::int64_t count, DType dtype, cudaStream_t stream);
// *to = value.
cudaError_t launch_put(std::int64_t* to, std::int64_t value, cudaStream_t stream);

}  // namespace lockstep::cuda
