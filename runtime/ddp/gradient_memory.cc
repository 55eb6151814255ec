#include "runtime/ddp/gradient_memory.h"

namespace lockstep {

GradientMemory::GradientMemory(const ProcessGroup& group, Arena arena)
    : arena_(std::move(arena)),
      runtime_(group.device().kind == DeviceKind::cpu ? nullptr : &device_runtime(group.device().kind)),
      stream_(group.stream()) {}

void GradientMemory::follow(StreamView stream) {
  if (stream == stream_) return;
  Event earlier(stream.device);
  earlier.record(stream_);
  earlier.block(stream);
  stream_ = stream;
}

}  // namespace lockstep
