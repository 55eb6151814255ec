// SPDX-License-Identifier: Apache-2.0
// A device's queues of work, and marks in them. Nothing here waits on the host unless it says so.
//
// Threads: any, one at a time per object, but reached() and synchronize() of an event beside each other. Copies are the
// same stream or event. Failure: every call throws DeviceError with the device library's own words; the constructors
// BackendUnavailable where there is no such device.
#pragma once

#include <chrono>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/base/deadline.h"
#include "lockstep/device/device.h"

namespace lockstep {

class DeviceRuntime;

// A stream that somebody else owns and keeps alive, as the device's library knows it (cudaStream_t). With a null
// handle: the device's default stream. On the CPU there is only that one: work there is done when the call returns.
struct StreamView {
  DeviceId device = {};
  void* handle = nullptr;

  bool operator==(const StreamView&) const = default;
};

// An owned stream. It is in no order with the default stream but by events (CUDA: "non-blocking").
class LOCKSTEP_API Stream {
 public:
  // CUDA's extremes: greatest gets a multiprocessor first when one becomes free, it interrupts nothing.
  enum class Priority { normal, greatest };
  explicit Stream(DeviceId device, Priority priority = Priority::normal);

  StreamView view() const { return view_; }
  // NOLINTNEXTLINE(google-explicit-constructor): a stream is a view already
  operator StreamView() const { return view_; }
  // Blocks the host until all that was put in is done. Throws Timeout.
  void synchronize(const Deadline& deadline) const;

 private:
  DeviceRuntime* runtime_;
  std::shared_ptr<void> owner_;
  StreamView view_;
};

// A mark in a stream.
class LOCKSTEP_API Event {
 public:
  // With `timed`, elapsed_since() can be asked; costs a little more on the device.
  explicit Event(DeviceId device, bool timed = false);

  // Puts the mark behind all that is in the stream now. A later record moves it; who waits already waits for the
  // earlier one.
  void record(StreamView stream);
  // Work put into `stream` from now on starts after the mark. Before any record: nothing to wait for.
  void block(StreamView stream) const;
  // Whether the mark was reached; true before any record. Never blocks.
  bool reached() const;
  // Blocks the host until then. Throws Timeout.
  void synchronize(const Deadline& deadline) const;
  // Device time between two timed marks that were both reached. InvalidArgument if one is not timed or was not
  // recorded.
  std::chrono::nanoseconds elapsed_since(const Event& earlier) const;

  DeviceId device() const { return device_; }

 private:
  DeviceRuntime* runtime_;
  DeviceId device_;
  std::shared_ptr<void> owner_;
};

}  // namespace lockstep
