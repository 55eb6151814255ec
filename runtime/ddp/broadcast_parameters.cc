// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/broadcast_parameters.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/comm/group_internals.h"

namespace lockstep {
namespace {

constexpr std::size_t kLarge = 1 << 20;
constexpr std::size_t kStageBytes = 4 << 20;

void broadcast_bytes(ProcessGroup& group, void* data, std::size_t bytes, DeviceId device, int root) {
  group.broadcast(BufferView(data, static_cast<std::int64_t>(bytes), DType::u8, device), root).wait();
}

// StageMemory owns the memory in which a Stage collects buffers, and copies bytes to and from this memory.
class StageMemory {
 public:
  StageMemory(ProcessGroup& group, DeviceId device)
      : runtime_(device_runtime(device.kind)),
        stream_(device == group.device() ? group.stream() : StreamView{device, nullptr}),
        memory_(runtime_.allocate(kStageBytes, stream_)) {}

  std::byte* data() const { return static_cast<std::byte*>(memory_.get()); }
  void copy(void* to, const void* from, std::size_t bytes) { runtime_.copy(to, from, bytes, stream_); }
  // Blocks until the copies are complete.
  void settle(const Deadline& deadline) { runtime_.synchronize(stream_, deadline); }

 private:
  DeviceRuntime& runtime_;
  StreamView stream_;
  std::shared_ptr<void> memory_;
};

// Stage collects small buffers of one device, and broadcasts the collected buffers together.
class Stage {
 public:
  Stage(ProcessGroup& group, DeviceId device, int root) : group_(group), device_(device), root_(root) {}

  void add(const BufferView& buffer) {
    if (bytes_ + buffer.bytes() > kStageBytes) flush();
    buffers_.push_back(buffer);
    bytes_ += buffer.bytes();
  }

  void flush() {
    if (bytes_ > 0) {
      if (!memory_) memory_.emplace(group_, device_);
      const bool mine = group_.rank() == root_;
      if (mine) for_each([&](std::byte* stage, const BufferView& it) { memory_->copy(stage, it.data, it.bytes()); });
      broadcast_bytes(group_, memory_->data(), bytes_, device_, root_);
      if (!mine) {
        for_each([&](std::byte* stage, const BufferView& it) { memory_->copy(it.data, stage, it.bytes()); });
        memory_->settle(Deadline::after(group_.timeout()));
      }
    }
    buffers_.clear();
    bytes_ = 0;
  }

 private:
  template <typename Copy>
  void for_each(Copy copy) {
    std::byte* stage = memory_->data();
    for (const BufferView& buffer : buffers_) {
      copy(stage, buffer);
      stage += buffer.bytes();
    }
  }

  ProcessGroup& group_;
  DeviceId device_;
  int root_;
  std::vector<BufferView> buffers_;
  std::size_t bytes_ = 0;
  std::optional<StageMemory> memory_;
};

}  // namespace

void broadcast_parameters(ProcessGroup& group, std::span<const BufferView> buffers, int root) {
  if (root < 0 || root >= group.size()) {
    throw InvalidArgument(
        fmt::format("broadcast_parameters: root {} is not a rank of this group of {} ranks; give a rank that is at "
                    "least 0 and below the group's size",
                    root, group.size()));
  }
  for (const BufferView& buffer : buffers) {
    if (!group.internals().takes(buffer.device)) {
      throw InvalidArgument(
          fmt::format("broadcast_parameters: a buffer of {} bytes is on {}, but the group is on {}; copy the buffer to "
                      "the group's device first",
                      buffer.bytes(), buffer.device.str(), group.device().str()));
    }
  }
  if (group.size() == 1) return;
  Stage host(group, {}, root);
  Stage on_device(group, group.device(), root);
  for (const BufferView& buffer : buffers) {
    if (buffer.count == 0) continue;
    if (buffer.bytes() < kLarge) {
      (buffer.device == DeviceId{} ? host : on_device).add(buffer);
    } else {
      broadcast_bytes(group, buffer.data, buffer.bytes(), buffer.device, root);
    }
  }
  host.flush();
  on_device.flush();
}

}  // namespace lockstep
