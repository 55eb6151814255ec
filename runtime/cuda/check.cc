// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/cuda/outside_captures.h"

namespace lockstep::cuda {
namespace {

// The rest of the process can only end: CUDA's manual says of these that its process must be started again.
bool breaks_the_process(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable: return true;
    default: return false;
  }
}

const char* remedy_of(cudaError_t error) {
  if (breaks_the_process(error)) {
    return "; it comes from an earlier kernel, and this process can't use the GPU any more: start it again, under "
           "compute-sanitizer, or as a single rank with CUDA_LAUNCH_BLOCKING=1, to see which kernel";
  }
  switch (error) {
    // The second where the driver loads code once it is needed.
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
      return "; the plug-in has no code for a GPU as old as this one; build lockstep with a CUDA toolkit that knows it "
             "(CUDA 12 for a V100), or take a GPU of compute capability 7.5 or newer";
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
      return "; the plug-in was built before this GPU, and the driver can't translate its code: install a driver as "
             "new as the CUDA toolkit that built lockstep, with its library libnvidia-ptxjitcompiler, or build "
             "lockstep "
             "with a toolkit that knows the GPU";
    case cudaErrorMemoryAllocation: return "; other processes have the GPU's memory, or this one has: see nvidia-smi";
    default: return "";
  }
}

}  // namespace

std::string error_text(cudaError_t error) {
  return fmt::format("{} ({}, {})", cudaGetErrorString(error), cudaGetErrorName(error), static_cast<int>(error));
}

void check(cudaError_t error, std::string_view operation, DeviceId device) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw DeviceError(fmt::format("{} on {}: {}{}", operation, device.str(), error_text(error), remedy_of(error)));
}

bool is_captured(cudaStream_t stream, DeviceId device) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(stream, &status);
  if (error == cudaErrorStreamCaptureImplicit) {
    cudaGetLastError();
    return true;
  }
  check(error, "cudaStreamIsCapturing", device);
  return status != cudaStreamCaptureStatusNone;
}

void check_not_captured(cudaStream_t stream, std::string_view operation, DeviceId device) {
  if (!is_captured(stream, device)) return;
  throw InvalidArgument(
      fmt::format("{} on {}: {}, and work for which other streams, ranks or the host wait can't be part of a CUDA "
                  "graph; end the capture first, and capture only what is computed between collectives",
                  operation, device.str(),
                  stream == nullptr ? "the default stream waits for a stream that is being captured"
                                    : "the stream is being captured"));
}

bool is_idle(cudaStream_t stream, DeviceId device) {
  const OutsideCaptures outside;
  const cudaError_t error = cudaStreamQuery(stream);
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(error, "cudaStreamQuery", device);
  return true;
}

bool check_quietly(cudaError_t error, std::string_view operation, DeviceId device) noexcept {
  if (error == cudaSuccess) return true;
  cudaGetLastError();
  if (error == cudaErrorCudartUnloading) return false;
  try {
    log_warn("{} on {}: {}", operation, device.str(), error_text(error));
  } catch (...) {
    // Only a line is lost, for want of memory.
    return false;
  }
  return false;
}

bool poll(const std::function<bool()>& done, const Deadline& deadline) {
  constexpr int kLooks = 100;
  constexpr std::chrono::microseconds kLongest{500};
  std::chrono::microseconds pause{10};
  for (int looks = 1; !done(); ++looks) {
    if (deadline.expired()) return false;
    if (looks < kLooks) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(kLongest, pause * 2);
    }
  }
  return true;
}

}  // namespace lockstep::cuda
