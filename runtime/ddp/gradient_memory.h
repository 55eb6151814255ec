// SPDX-License-Identifier: Apache-2.0
// GradientMemory lets the Reducer read and write the arena's bytes between collectives.
//
// If the arena is in CPU memory, each call reads or writes at once. On a device each call queues its work in the
// compute stream, in which the gradients are also written, and the host does not wait. The compute stream runs the work
// in the order of the calls.
//
// Threads: only the Reducer's thread calls the functions of GradientMemory.
// Failure: throws DeviceError.
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
  // REQUIRES: `group` has allocated `arena`.
  GradientMemory(const ProcessGroup& group, Arena arena);

  // Returns the device's runtime, or null if the arena is in CPU memory.
  DeviceRuntime* device() const { return runtime_; }
  // Returns the compute stream, in which the gradients are written on a device.
  StreamView stream() const { return stream_; }
  // On a device, records which work is now in the compute stream; the stream that the next follow() gets waits for this
  // work. Call detach_stream() when the Reducer no longer uses the compute stream. The stream may then be destroyed.
  void detach_stream();
  // Makes `stream` the compute stream. Work that is queued in `stream` after follow() runs after the work that the
  // previous compute stream held at the last detach_stream().
  void follow(StreamView stream);

  std::byte* at(std::size_t offset) const { return arena_.data + offset; }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const;
  // Sets `to` to left + right. The pointer `to` may be equal to `left` or `right`.
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
  DeviceRuntime* runtime_;  // the runtime, which lives as long as the process
  StreamView stream_;
  std::optional<Event> left_;  // the event of the last detach_stream() on a device
};

}  // namespace lockstep
