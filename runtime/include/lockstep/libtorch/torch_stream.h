// SPDX-License-Identifier: Apache-2.0
// The functions below convert torch's devices and streams to lockstep's own types.
//
// On a GPU lockstep orders its work after the work in torch's current stream of the calling thread. A module's kernels
// run in the current stream, and autograd sets the current stream of each of its threads. The CPU has a single stream;
// an operation on the CPU is finished when the call of the operation returns.
//
// Threads: any thread may call these functions. Failure: on a GPU, current_stream() throws BackendUnavailable if
//   LibTorch is older than 2.6, because an older LibTorch has no function that returns the current stream.
#pragma once

#include <c10/core/Device.h>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/device/stream.h"

namespace lockstep::libtorch {

// Returns the torch device of this rank's tensors, as in module->to(lockstep::libtorch::device_of(*group)).
LOCKSTEP_API at::Device device_of(const ProcessGroup& group);
// Returns lockstep's id of a torch device, which must be the CPU or a CUDA device; throws InvalidArgument for any
// other device.
LOCKSTEP_API DeviceId device_id_of(const at::Device& device);
// Returns whether the group's collectives accept tensors on `device`.
LOCKSTEP_API bool is_at_home(const ProcessGroup& group, const at::Device& device);

LOCKSTEP_API StreamView current_stream(DeviceId device);

// Makes all work that the caller puts into the stream `later` after this call start after the work that is already in
// the stream `earlier`. The host does not wait.
LOCKSTEP_API void put_in_order(StreamView earlier, StreamView later);

// While an OnStream lives, the group's collectives start after the work in the OnStream's stream. The destructor of
// OnStream gives the group its former stream again. Wait for results with OnStream::wait().
class LOCKSTEP_API OnStream {
 public:
  OnStream(ProcessGroup& group, StreamView stream);
  ~OnStream();
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

  // Makes later work in this OnStream's stream start after `work`. On the CPU the host waits.
  void wait(const Work& work) const {
    if (stream_.device.kind == DeviceKind::cpu) return work.wait();
    work.wait_on(stream_);
  }

 private:
  ProcessGroup& group_;
  StreamView before_;
  StreamView stream_;
};

// OnCurrentStream is an OnStream for torch's current stream of the calling thread.
class OnCurrentStream : public OnStream {
 public:
  explicit OnCurrentStream(ProcessGroup& group) : OnStream(group, current_stream(group.device())) {}
};

}  // namespace lockstep::libtorch
