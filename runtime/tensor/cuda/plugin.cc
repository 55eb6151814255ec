// SPDX-License-Identifier: Apache-2.0
// The symbols that tensor/kernels.cc looks for in liblockstep_cuda_nn.so.
#include <memory>

#include "runtime/base/mutex.h"
#include "runtime/base/plugin.h"
#include "runtime/comm/plugin.h"
#include "runtime/tensor/cuda/cuda_kernels.h"

LOCKSTEP_PLUGIN_STAMP

extern "C" lockstep::Kernels* lockstep_plugin_kernels(int device) {
  using lockstep::cuda::CudaKernels;
  // Never destroyed: tensors may go after main() has ended.
  static lockstep::Mutex& mutex = *new lockstep::Mutex;
  static auto& made = *new std::map<int, std::unique_ptr<CudaKernels>>;
  const lockstep::MutexLock lock(mutex);
  auto& kernels = made[device];
  if (kernels == nullptr) {
    kernels = std::make_unique<CudaKernels>(lockstep::DeviceId{lockstep::DeviceKind::cuda, device});
  }
  return kernels.get();
}
