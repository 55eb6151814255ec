#include "runtime/tensor/storage.h"

#include "runtime/tensor/kernels.h"

namespace lockstep {

std::shared_ptr<Storage> Storage::allocate(std::size_t bytes, DeviceId device) {
  void* data = bytes == 0 ? nullptr : kernels(device).allocate(bytes);
  return std::shared_ptr<Storage>(new Storage(data, bytes, device, nullptr, true));
}

std::shared_ptr<Storage> Storage::borrow(void* data, std::size_t bytes, DeviceId device, std::shared_ptr<void> owner) {
  return std::shared_ptr<Storage>(new Storage(data, bytes, device, std::move(owner), false));
}

Storage::~Storage() {
  if (owned_ && data_ != nullptr) kernels(device_).release(data_, bytes_);
}

}  // namespace lockstep
