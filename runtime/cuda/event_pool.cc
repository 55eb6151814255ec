#include "runtime/cuda/event_pool.h"

#include "runtime/cuda/check.h"
#include "runtime/cuda/current_device.h"
#include "runtime/cuda/outside_captures.h"

namespace lockstep::cuda {

cudaEvent_t EventPool::record(cudaStream_t stream) {
  const CurrentDevice current(device_);
  check_not_captured(stream, "giving memory back", device_);
  cudaEvent_t event = nullptr;
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      event = idle_.back();
      idle_.pop_back();
    }
  }
  if (event == nullptr) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate", device_);
  }
  const cudaError_t error = cudaEventRecord(event, stream);
  if (error != cudaSuccess) put(event);
  check(error, "cudaEventRecord", device_);
  return event;
}

void EventPool::record_again(cudaEvent_t event, cudaStream_t stream) {
  const CurrentDevice current(device_);
  check(cudaEventRecord(event, stream), "cudaEventRecord", device_);
}

void EventPool::put(cudaEvent_t event) {
  MutexLock lock(mutex_);
  idle_.push_back(event);
}

bool reached(cudaEvent_t event, DeviceId device) {
  const CurrentDevice current(device);
  const OutsideCaptures outside;
  const cudaError_t error = cudaEventQuery(event);
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(error, "cudaEventQuery", device);
  return true;
}

}  // namespace lockstep::cuda
