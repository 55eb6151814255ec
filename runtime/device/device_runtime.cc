// SPDX-License-Identifier: Apache-2.0
#include "lockstep/device/device_runtime.h"

#include "lockstep/base/error.h"
#include "runtime/base/mutex.h"
#include "runtime/base/plugin.h"
#include "runtime/device/cpu_runtime.h"

namespace lockstep {
namespace {

// A failed load is tried again: the file may have been put there since.
DeviceRuntime& cuda_runtime() {
  static Mutex mutex;
  static DeviceRuntime* loaded = nullptr;
  MutexLock lock(mutex);
  if (loaded != nullptr) return *loaded;
  const LoadedPlugin plugin = load_own_plugin(kCudaPlugin, {kCudaRunsWith, kCudaBuiltWith});
  if (!plugin.problem.empty()) throw BackendUnavailable("device 'cuda' can't be used: " + plugin.problem);
  loaded = reinterpret_cast<decltype(&lockstep_plugin_device)>(plugin.symbol(kPluginDeviceSymbol))();
  return *loaded;
}

}  // namespace

DeviceRuntime& device_runtime(DeviceKind kind) { return kind == DeviceKind::cpu ? cpu_runtime() : cuda_runtime(); }

}  // namespace lockstep
