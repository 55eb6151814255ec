// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/pending_call.h"

#include <cstring>
#include <utility>

namespace lockstep::nccl {

void StagedBuffer::prepare(const LaunchContext& context, const ConstBufferView& buffer, void* result) {
  buffer_ = buffer;
  result_ = result;
  if (buffer.device.kind != DeviceKind::cpu || buffer.bytes() == 0) return;
  on_device_ = context.runtime.allocate(buffer.bytes(), context.stream);
  pinned_ = context.runtime.allocate_pinned(buffer.bytes(), context.stream.device);
}

void StagedBuffer::copy_in(const LaunchContext& context) {
  if (!on_device_) return;
  std::memcpy(pinned_.get(), buffer_.data, buffer_.bytes());
  context.runtime.copy(on_device_.get(), pinned_.get(), buffer_.bytes(), context.stream);
}

void StagedBuffer::copy_out(const LaunchContext& context) {
  if (!on_device_) return;
  context.runtime.copy(pinned_.get(), on_device_.get(), buffer_.bytes(), context.stream);
  comes_back_ = true;
}

void StagedBuffer::finish() {
  if (std::exchange(comes_back_, false)) std::memcpy(result_, pinned_.get(), buffer_.bytes());
  on_device_.reset();
  pinned_.reset();
}

}  // namespace lockstep::nccl
