// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/kernels.h"

#include <array>
#include <atomic>

#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/base/mutex.h"
#include "runtime/base/plugin.h"

namespace lockstep {
namespace {

constexpr const char* kKernelsPlugin = "cuda_nn";
constexpr int kMostDevices = 64;

// A failed load is tried again: the file may have been put there since.
Kernels& load_cuda_kernels(int index) {
  static Mutex mutex;
  static decltype(&lockstep_plugin_kernels) kernels_of = nullptr;
  MutexLock lock(mutex);
  if (kernels_of == nullptr) {
    const LoadedPlugin plugin = load_own_plugin(kKernelsPlugin, {kCudaRunsWith, kCudaBuiltWith});
    if (!plugin.problem.empty()) throw BackendUnavailable("tensors on cuda can't be used: " + plugin.problem);
    kernels_of = reinterpret_cast<decltype(&lockstep_plugin_kernels)>(plugin.symbol(kPluginKernelsSymbol));
  }
  return *kernels_of(index);
}

Kernels& cuda_kernels(int index) {
  static std::array<std::atomic<Kernels*>, kMostDevices> known{};
  if (index < 0 || index >= kMostDevices) return load_cuda_kernels(index);
  std::atomic<Kernels*>& one = known[static_cast<std::size_t>(index)];
  Kernels* found = one.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  static Mutex mutex;
  MutexLock lock(mutex);
  found = one.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  found = &load_cuda_kernels(index);
  one.store(found, std::memory_order_release);
  return *found;
}

}  // namespace

Kernels& kernels(DeviceId device) {
  return device.kind == DeviceKind::cpu ? cpu_kernels() : cuda_kernels(device.index);
}

}  // namespace lockstep
