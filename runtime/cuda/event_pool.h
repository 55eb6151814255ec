// SPDX-License-Identifier: Apache-2.0
// Events of one device, used again: to make one costs more than to use one.
//
// Threads: any; each event as lockstep/device/stream.h says.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <vector>

#include "lockstep/device/device.h"
#include "runtime/base/mutex.h"

namespace lockstep::cuda {

// Its device is current while CUDA is asked about it: on a thread without a context the question would bring one up on
// GPU 0.
struct DeviceEvent {
  cudaEvent_t event = nullptr;
  DeviceId device;
  bool timed = false;
  bool is_recorded = false;  // by its present owner: the mark of an earlier one is nobody's
};

// Throw DeviceError; record() also InvalidArgument for a stream that is being captured.
void record(DeviceEvent& event, cudaStream_t stream);
bool reached(const DeviceEvent& event);

class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  explicit EventPool(DeviceId device) : device_(device) {}

  // An event without a mark; its last copy brings it back. Throws DeviceError.
  std::shared_ptr<DeviceEvent> take(bool timed) EXCLUDES(mutex_);

 private:
  const DeviceId device_;
  Mutex mutex_;
  std::array<std::vector<std::unique_ptr<DeviceEvent>>, 2> idle_ GUARDED_BY(mutex_);  // untimed, timed
};

}  // namespace lockstep::cuda
