// SPDX-License-Identifier: Apache-2.0
// Streams are a device's queues of work, and events are marks in them. A call waits on the host only if its comment
// says so.
//
// Threads: any, one at a time per object; but reached() and synchronize() of an event may run at the same time. Copies
//   are the same stream or event.
// Failure: every call throws DeviceError with the device library's own words; a constructor throws BackendUnavailable
//   if there is no such device.
#pragma once

#include <chrono>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/base/deadline.h"
#include "lockstep/device/device.h"

namespace lockstep {

class DeviceRuntime;

// A stream that somebody else owns and keeps alive, as the device's library knows it (cudaStream_t). A null handle is
// the device's default stream. The CPU has only that one: its work is done when the call returns.
struct StreamView {
  DeviceId device = {};
  void* handle = nullptr;

  bool operator==(const StreamView&) const = default;
};

// An owned stream. Only events order it with the default stream (CUDA: "non-blocking").
class LOCKSTEP_API Stream {
 public:
  // CUDA's extremes: `greatest` gets a multiprocessor first when one becomes free; it interrupts nothing.
  enum class Priority { normal, greatest };
  explicit Stream(DeviceId device, Priority priority = Priority::normal);

  StreamView view() const { return view_; }
  // NOLINTNEXTLINE(google-explicit-constructor): a stream is a view already
  operator StreamView() const { return view_; }
  // Blocks the host until all work in the stream is done. Throws Timeout.
  void synchronize(const Deadline& deadline) const;

 private:
  DeviceRuntime* runtime_;
  std::shared_ptr<void> owner_;
  StreamView view_;
};

// A mark in a stream.
class LOCKSTEP_API Event {
 public:
  // With `timed`, elapsed_since() works; it costs a little more on the device.
  explicit Event(DeviceId device, bool timed = false);

  // Puts the mark after all work that is in the stream now. A later record moves the mark; a stream that waits already
  // waits for the earlier mark.
  void record(StreamView stream);
  // Makes later work in `stream` start after the mark. Without an earlier record there is nothing to wait for.
  void block(StreamView stream) const;
  // Whether the mark was reached; true before any record. Never blocks.
  bool reached() const;
  // Blocks the host until the mark is reached. Throws Timeout.
  void synchronize(const Deadline& deadline) const;
  // The device's time between two timed marks that were both reached. InvalidArgument if one is not timed or was not
  // recorded.
  std::chrono::nanoseconds elapsed_since(const Event& earlier) const;

  DeviceId device() const { return device_; }

 private:
  DeviceRuntime* runtime_;
  DeviceId device_;
  std::shared_ptr<void> owner_;
};

}  // namespace lockstep
