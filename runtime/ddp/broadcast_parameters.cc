#include "runtime/ddp/broadcast_parameters.h"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "runtime/base/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kLarge = 1 << 20;
constexpr std::size_t kStageBytes = 4 << 20;

void broadcast_bytes(ProcessGroup& group, void* data, std::size_t bytes, int root) {
  group.broadcast(BufferView(data, static_cast<std::int64_t>(bytes), DType::u8), root).wait();
}

// Small buffers on their way together.
class Stage {
 public:
  Stage(ProcessGroup& group, int root) : group_(group), root_(root) {}

  void add(const BufferView& buffer) {
    if (bytes_ + buffer.bytes() > kStageBytes) flush();
    buffers_.push_back(buffer);
    bytes_ += buffer.bytes();
  }

  void flush() {
    if (bytes_ > 0) {
      memory_.resize(bytes_);
      const bool mine = group_.rank() == root_;
      if (mine) for_each([](std::byte* stage, const BufferView& it) { std::memcpy(stage, it.data, it.bytes()); });
      broadcast_bytes(group_, memory_.data(), bytes_, root_);
      if (!mine) for_each([](std::byte* stage, const BufferView& it) { std::memcpy(it.data, stage, it.bytes()); });
    }
    buffers_.clear();
    bytes_ = 0;
  }

 private:
  template <typename Copy>
  void for_each(Copy copy) {
    std::byte* stage = memory_.data();
    for (const BufferView& buffer : buffers_) {
      copy(stage, buffer);
      stage += buffer.bytes();
    }
  }

  ProcessGroup& group_;
  int root_;
  std::vector<BufferView> buffers_;
  std::size_t bytes_ = 0;
  std::vector<std::byte> memory_;
};

}  // namespace

void broadcast_parameters(ProcessGroup& group, std::span<const BufferView> buffers, int root) {
  if (root < 0 || root >= group.size()) {
    throw InvalidArgument(fmt::format("broadcast_parameters: root {} is no rank of a group of {}", root, group.size()));
  }
  for (const BufferView& buffer : buffers) {
    if (buffer.device.kind != DeviceKind::cpu) {
      throw InvalidArgument(
          fmt::format("broadcast_parameters: a buffer of {} bytes is on {}; only CPU memory can be "
                      "broadcast here",
                      buffer.bytes(), buffer.device.str()));
    }
  }
  if (group.size() == 1) return;
  Stage stage(group, root);
  for (const BufferView& buffer : buffers) {
    if (buffer.count == 0) continue;
    if (buffer.bytes() < kLarge) {
      stage.add(buffer);
    } else {
      broadcast_bytes(group, buffer.data, buffer.bytes(), root);
    }
  }
  stage.flush();
}

}  // namespace lockstep
