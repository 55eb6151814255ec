// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/gradient_memory.h"

#include <array>

namespace lockstep {

GradientMemory::GradientMemory(const ProcessGroup& group, Arena arena)
    : arena_(std::move(arena)),
      runtime_(group.device().kind == DeviceKind::cpu ? nullptr : &device_runtime(group.device().kind)),
      stream_(group.stream()) {
  held_.set(static_cast<std::int64_t>(arena_.bytes));
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

void GradientMemory::copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
  device_runtime(stream_.device.kind).copy(to, from, bytes, stream_);
}

void GradientMemory::add(const std::byte* left, const std::byte* right, std::byte* to, std::int64_t count,
                         DType dtype) const {
  constexpr std::array<std::uint8_t, 2> kMerges{0, 1};
  device_runtime(stream_.device.kind)
      .sum_rows(left, right - left, kMerges, BufferView(to, count, dtype, stream_.device), stream_);
}

}  // namespace lockstep
