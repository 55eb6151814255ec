// SPDX-License-Identifier: Apache-2.0
// Defines streams, which are a device's queues of work, and events, which are marks in streams. A call makes the host
// wait only if the call's comment says so.
//
// Threads: any thread may use a stream or event, but only one thread at a time. As an exception, one event's reached()
//   and synchronize() may run at the same time. Copies of an object refer to one stream or event.
// Failure: every call throws DeviceError with the words of the device's library; a constructor throws
//   BackendUnavailable if the device does not exist.
#pragma once

#include <chrono>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/base/deadline.h"
#include "lockstep/device/device.h"

namespace lockstep {

class DeviceRuntime;

// StreamView refers to a stream that its owner keeps alive, by the handle of the device's library (cudaStream_t). A
// null handle is the device's default stream. The CPU has only a default stream, whose work is done when a
// call returns.
struct StreamView {
  DeviceId device = {};
  void* handle = nullptr;

  bool operator==(const StreamView&) const = default;
};

// Stream owns a stream. Only events order an owned stream with the default stream (CUDA: "non-blocking").
class LOCKSTEP_API Stream {
 public:
  // Priority has CUDA's least and greatest priority. When a multiprocessor becomes free, work of `greatest` starts
  // first; running work is not interrupted.
  enum class Priority { normal, greatest };
  explicit Stream(DeviceId device, Priority priority = Priority::normal);

  StreamView view() const { return view_; }
  // NOLINTNEXTLINE(google-explicit-constructor): a stream is a view already
  operator StreamView() const { return view_; }
  // Blocks the host until all work in the stream is done. Throws Timeout at the deadline.
  void synchronize(const Deadline& deadline) const;

 private:
  DeviceRuntime* runtime_;
  std::shared_ptr<void> owner_;
  StreamView view_;
};

// Event is a mark in a stream.
class LOCKSTEP_API Event {
 public:
  // Makes an event. elapsed_since() needs events with `timed`, which cost slightly more on the device.
  explicit Event(DeviceId device, bool timed = false);

  // Puts the mark after all work that is in the stream now. A later record() moves the mark; a stream that is already
  // waiting still waits for the earlier mark.
  void record(StreamView stream);
  // Makes later work in `stream` start after the mark. Does nothing before the first record().
  void block(StreamView stream) const;
  // Returns whether the device has reached the mark; true before the first record(). Never blocks.
  bool reached() const;
  // Blocks the host until the device has reached the mark. Throws Timeout at the deadline.
  void synchronize(const Deadline& deadline) const;
  // Returns the device's time from `earlier` to this event, if the device has reached both. Throws InvalidArgument if
  // an event is not timed or was not recorded.
  std::chrono::nanoseconds elapsed_since(const Event& earlier) const;

  DeviceId device() const { return device_; }

 private:
  DeviceRuntime* runtime_;
  DeviceId device_;
  std::shared_ptr<void> owner_;
};

}  // namespace lockstep
