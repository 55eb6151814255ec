// Untimed events of one device, for use inside the plug-in: to make one costs more than to use one.
//
// Threads: any.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/device/device.h"

namespace lockstep::cuda {

class EventPool {
 public:
  explicit EventPool(DeviceId device) : device_(device) {}

  // An event recorded in `stream`. Throws DeviceError.
  cudaEvent_t record(cudaStream_t stream) EXCLUDES(mutex_);
  // Moves its mark to the end of `stream`.
  void record_again(cudaEvent_t event, cudaStream_t stream);
  // Gives it back; whoever waits for it may go on waiting.
  void put(cudaEvent_t event) EXCLUDES(mutex_);

 private:
  const DeviceId device_;
  Mutex mutex_;
  std::vector<cudaEvent_t> idle_ GUARDED_BY(mutex_);
};

// Whether an event was reached. Throws DeviceError.
bool reached(cudaEvent_t event, DeviceId device);

}  // namespace lockstep::cuda
