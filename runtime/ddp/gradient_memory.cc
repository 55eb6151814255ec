// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/gradient_memory.h"

namespace lockstep {

GradientMemory::GradientMemory(const ProcessGroup& group, Arena arena)
    : arena_(std::move(arena)),
      runtime_(group.device().kind == DeviceKind::cpu ? nullptr : &device_runtime(group.device().kind)),
      stream_(group.stream()) {
  if (runtime_ != nullptr) left_.emplace(group.device());
  detach_stream();
}

void GradientMemory::detach_stream() {
  if (left_) left_->record(stream_);
}

void GradientMemory::follow(StreamView stream) {
  if (stream == stream_) return;
  if (left_) left_->block(stream);
  stream_ = stream;
}

}  // namespace lockstep
