// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/current_device.h"

#include <cuda_runtime_api.h>

#include "runtime/cuda/check.h"

namespace lockstep::cuda {
namespace {

// The driver's own question, which the runtime has no name for. Null if the driver does not have it.
using GetCurrentContext = int (*)(void** context);

GetCurrentContext find_get_current_context() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  constexpr unsigned kSince = 4000;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &function, kSince, cudaEnableDefault, &found);
#else
  const cudaError_t error = cudaGetDriverEntryPoint("cuCtxGetCurrent", &function, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess) cudaGetLastError();
  const bool is_there = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
  return is_there ? reinterpret_cast<GetCurrentContext>(function) : nullptr;
}

bool thread_has_context() {
  static const GetCurrentContext get = find_get_current_context();
  if (get == nullptr) return true;
  void* context = nullptr;
  return get(&context) == 0 && context != nullptr;
}

}  // namespace

CurrentDevice::CurrentDevice(DeviceId device) {
  int now = 0;
  check(cudaGetDevice(&now), "cudaGetDevice", device);
  if (now == device.index) return;
  const bool is_somebodys = thread_has_context();
  check(cudaSetDevice(device.index), "cudaSetDevice", device);
  if (is_somebodys) former_ = now;
}

CurrentDevice::~CurrentDevice() {
  if (former_ >= 0) check_quietly(cudaSetDevice(former_), "cudaSetDevice back", {DeviceKind::cuda, former_});
}

}  // namespace lockstep::cuda
