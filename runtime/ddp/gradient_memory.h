// SPDX-License-Identifier: Apache-2.0
// The arena's bytes, as the Reducer itself reads and writes them between collectives.
//
// In CPU memory that happens at once. On a device it happens in the compute stream, where the gradients are written
// too, and no call waits on the host: the order of the stream is the order of the calls.
//
// Threads: the Reducer's.
// Failure: DeviceError.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>

#include "lockstep/comm/process_group.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/trace/held_memory.h"

namespace lockstep {

class GradientMemory {
 public:
  // `group` has allocated `arena`.
  GradientMemory(const ProcessGroup& group, Arena arena);

  // The device's runtime; null in CPU memory.
  DeviceRuntime* device() const { return runtime_; }
  // The compute stream, on a device.
  StreamView stream() const { return stream_; }
  // On a device: orders the compute stream's present work before the next stream's. Call it when the Reducer no longer
  // uses the stream; the stream may then be destroyed.
  void detach_stream();
  // Makes `stream` the compute stream, after the work that the one before had at the last detach_stream().
  void follow(StreamView stream);

  std::byte* at(std::size_t offset) const { return arena_.data + offset; }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const;
  // Sets `to` to left + right; `to` may be one of them.
  void add(const std::byte* left, const std::byte* right, std::byte* to, std::int64_t count, DType dtype) const;
  const std::shared_ptr<void>& owner() const { return arena_.owner; }
  void zero(std::size_t offset, std::size_t bytes) {
    if (runtime_ == nullptr) {
      std::memset(at(offset), 0, bytes);
    } else if (bytes > 0) {
      runtime_->zero(at(offset), bytes, stream_);
    }
  }

 private:
  Arena arena_;
  trace::HeldMemory held_{trace::Held::gradients};
  DeviceRuntime* runtime_;  // lives as long as the process
  StreamView stream_;
  std::optional<Event> left_;  // on a device
};

}  // namespace lockstep
