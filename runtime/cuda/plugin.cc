// SPDX-License-Identifier: Apache-2.0
// The symbols that the core looks for in liblockstep_cuda.so; lockstep_plugin_backend is in runtime/comm/nccl.
#include "runtime/base/plugin.h"
#include "runtime/comm/plugin.h"
#include "runtime/cuda/runtime.h"

LOCKSTEP_PLUGIN_STAMP

extern "C" lockstep::DeviceRuntime* lockstep_plugin_device() {
  // Never destroyed: memory and streams may go back after main() has ended.
  static auto* const runtime = new lockstep::cuda::CudaRuntime;
  return runtime;
}
