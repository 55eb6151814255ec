// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/kernels.h"

#include <fmt/format.h>

#include <atomic>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// A plug-in is loaded once per process, so what it offers is the process's too.
std::atomic<const KernelTable*> cuda_table{nullptr};

}  // namespace

const KernelTable& kernels(DeviceId device) {
  if (device.kind == DeviceKind::cpu) return cpu_kernels();
  if (const KernelTable* table = cuda_table.load(std::memory_order_acquire)) return *table;
  throw BackendUnavailable(fmt::format(
      "tensors on {} need the CUDA plug-in, which is not loaded in this process; use the device cpu", device.str()));
}

void register_kernels(DeviceKind kind, const KernelTable* table) {
  if (kind != DeviceKind::cuda) throw InvalidArgument("register_kernels: the CPU's table is built in");
  cuda_table.store(table, std::memory_order_release);
}

}  // namespace lockstep
