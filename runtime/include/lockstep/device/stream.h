// SPDX-License-Identifier: Apache-2.0
// Defines streams, which are a device's queues of work, and events, which are marks in streams. A function of a stream
// or event makes the host wait only if the function's comment says so.
//
// Threads: any thread may use a stream or event, but only one thread at a time. Only reached() and synchronize() of one
//   event may run at the same time on different threads. Copies of a Stream or Event refer to the same stream or event
//   of the device.
// Failure: if the device's library fails, the functions of a stream or event throw DeviceError with the library's error
//   text. The constructor of a stream or event throws BackendUnavailable if the device does not exist.
#pragma once

#include <chrono>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/base/deadline.h"
#include "lockstep/device/device.h"

namespace lockstep {

class DeviceRuntime;

// StreamView refers to a stream by the handle of the device's library (cudaStream_t); the stream's owner must keep the
// stream alive. A null handle refers to the device's default stream. The CPU has only a default stream, and each call
// on the CPU finishes its work before the call returns.
struct StreamView {
  DeviceId device = {};
  void* handle = nullptr;

  bool operator==(const StreamView&) const = default;
};

// Stream owns a stream of the device. Only events order work in a Stream with work in the device's default stream (CUDA
// calls such a stream non-blocking).
class LOCKSTEP_API Stream {
 public:
  // Priority has CUDA's least and greatest priority. When a multiprocessor becomes free, work in a stream of `greatest`
  // priority starts first; running work is not interrupted.
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
  // Makes an event. Only events with `timed` support elapsed_since(); timed events cost slightly more on the device.
  explicit Event(DeviceId device, bool timed = false);

  // Puts the event's mark after all work that was queued in `stream` before the call. A later record() moves the mark.
  // A stream that has waited for the event since before record() still waits for the event's earlier mark.
  void record(StreamView stream);
  // Makes work that is queued in `stream` after block() start only when the device has reached the event's mark. Does
  // nothing before the first record().
  void block(StreamView stream) const;
  // Returns whether the device has reached the event's mark, or true before the first record(). Never blocks.
  bool reached() const;
  // Blocks the host until the device has reached the event's mark. Throws Timeout at the deadline.
  void synchronize(const Deadline& deadline) const;
  // Returns the time that passed on the device from `earlier` to this event. Throws InvalidArgument if one of the two
  // events is not timed, was not recorded, or is not reached yet.
  std::chrono::nanoseconds elapsed_since(const Event& earlier) const;

  DeviceId device() const { return device_; }

 private:
  DeviceRuntime* runtime_;
  DeviceId device_;
  std::shared_ptr<void> owner_;
};

}  // namespace lockstep
