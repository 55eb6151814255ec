// SPDX-License-Identifier: Apache-2.0
// Converts torch's devices and streams to lockstep's own types.
//
// lockstep uses torch's current stream of the calling thread: a module's kernels run in this stream, and autograd sets
// the current stream for each of its threads. The CPU has a single stream, in which work is done when its call returns.
//
// Threads: any thread may call these functions. Failure: calls throw BackendUnavailable if LibTorch can't tell its
// current stream (older than 2.6).
#pragma once

#include <c10/core/Device.h>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/device/stream.h"

namespace lockstep::libtorch {

// Returns the device of this rank's tensors: module->to(lockstep::libtorch::device_of(*group)).
LOCKSTEP_API at::Device device_of(const ProcessGroup& group);
// Returns the id of a torch device that lockstep has, the CPU or CUDA; throws InvalidArgument for another device.
LOCKSTEP_API DeviceId device_id_of(const at::Device& device);
// Returns whether the group's collectives take tensors of `device`.
LOCKSTEP_API bool is_at_home(const ProcessGroup& group, const at::Device& device);

LOCKSTEP_API StreamView current_stream(DeviceId device);

// Makes later work in `later` start after the work that is in `earlier`. The host does not wait.
LOCKSTEP_API void put_in_order(StreamView earlier, StreamView later);

// While an OnStream lives, the group's collectives start after the work in its stream; afterwards the group's former
// stream applies again. Wait for results with OnStream::wait().
class LOCKSTEP_API OnStream {
 public:
  OnStream(ProcessGroup& group, StreamView stream);
  ~OnStream();
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

  // Makes later work in the stream start after `work`. On the CPU the host waits.
  void wait(const Work& work) const {
    if (stream_.device.kind == DeviceKind::cpu) return work.wait();
    work.wait_on(stream_);
  }

 private:
  ProcessGroup& group_;
  StreamView before_;
  StreamView stream_;
};

// OnCurrentStream is an OnStream with this thread's current stream.
class OnCurrentStream : public OnStream {
 public:
  explicit OnCurrentStream(ProcessGroup& group) : OnStream(group, current_stream(group.device())) {}
};

}  // namespace lockstep::libtorch
