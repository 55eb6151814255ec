// SPDX-License-Identifier: Apache-2.0
// Return codes of CUDA as exceptions.
//
// Threads: any.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/device/device.h"

namespace lockstep::cuda {

// "out of memory (cudaErrorMemoryAllocation, 2)".
std::string error_text(cudaError_t error);

// Throws DeviceError with the operation, the device and CUDA's words. An error that CUDA keeps for the next call to
// find is taken back first; those that break the device for this process stay, and every later call fails.
void check(cudaError_t error, std::string_view operation, DeviceId device);

// Whether the stream, on the current device, is being captured into a CUDA graph, or waits for one that is. Throws
// DeviceError, as is_idle() does.
bool is_captured(cudaStream_t stream, DeviceId device);

// Throws InvalidArgument where the stream, on the current device, is being captured into a CUDA graph: an event of ours
// in there would be the graph's, which nobody may wait for, and would pull the streams that do into the capture.
void check_not_captured(cudaStream_t stream, std::string_view operation, DeviceId device);

// Whether the device has done all that is in the stream, which is on the current device.
bool is_idle(cudaStream_t stream, DeviceId device);

// For destructors: a line in the log instead. True if there was no error. Silent while the process ends and CUDA has
// gone already.
bool check_quietly(cudaError_t error, std::string_view operation, DeviceId device) noexcept;

// The wait for the device, for CUDA's own has no deadline. Asks `done` until it says yes. Short work is met by the
// first looks, long work costs no core. False once the deadline has passed.
bool poll(const std::function<bool()>& done, const Deadline& deadline);

}  // namespace lockstep::cuda
