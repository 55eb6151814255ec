#include "runtime/comm/nccl/item.h"

#include <cstring>

namespace lockstep::nccl {

void Staged::prepare(const Lane& lane, const BufferView& buffer) {
  buffer_ = buffer;
  data_ = static_cast<std::byte*>(buffer.data);
  if (buffer.device.kind != DeviceKind::cpu || buffer.bytes() == 0) return;
  on_device_ = lane.runtime.allocate(buffer.bytes(), lane.stream);
  pinned_ = lane.runtime.allocate_pinned(buffer.bytes(), lane.stream.device);
  data_ = static_cast<std::byte*>(on_device_.get());
}

void Staged::bring_in(const Lane& lane) {
  if (!on_device_) return;
  std::memcpy(pinned_.get(), buffer_.data, buffer_.bytes());
  lane.runtime.copy(data_, pinned_.get(), buffer_.bytes(), lane.stream);
}

void Staged::bring_back(const Lane& lane) {
  if (!on_device_) return;
  lane.runtime.copy(pinned_.get(), data_, buffer_.bytes(), lane.stream);
  comes_back_ = true;
}

void Staged::land() {
  if (comes_back_) std::memcpy(buffer_.data, pinned_.get(), buffer_.bytes());
  on_device_.reset();
  pinned_.reset();
}

}  // namespace lockstep::nccl
