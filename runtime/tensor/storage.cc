// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/tensor.h"

#include <fmt/format.h>

#include <cerrno>
#include <new>

#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/tensor/kernels.h"

namespace lockstep {

std::shared_ptr<Storage> Storage::allocate(std::size_t bytes, DeviceId device) {
  if (device.kind != DeviceKind::cpu) {
    std::shared_ptr<void> memory = device_runtime(device.kind).allocate(bytes, kernels(device).stream());
    void* const data = memory.get();
    return borrow(data, bytes, device, std::move(memory));
  }
  void* data = nullptr;
  try {
    if (bytes > 0) data = cpu::allocate(bytes);
  } catch (const std::bad_alloc&) {
    throw SystemError(
        fmt::format("can't allocate {} bytes for a tensor on {} (take smaller batches, or free memory of this host)",
                    bytes, device.str()),
        ENOMEM);
  }
  return std::shared_ptr<Storage>(new Storage(data, bytes, device, nullptr, true));
}

std::shared_ptr<Storage> Storage::borrow(void* data, std::size_t bytes, DeviceId device, std::shared_ptr<void> owner) {
  return std::shared_ptr<Storage>(new Storage(data, bytes, device, std::move(owner), false));
}

Storage::~Storage() {
  if (owned_ && data_ != nullptr) cpu::release(data_, bytes_);
}

}  // namespace lockstep
