// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/event_pool.h"

#include "runtime/cuda/check.h"
#include "runtime/cuda/current_device.h"
#include "runtime/cuda/outside_captures.h"

namespace lockstep::cuda {

void record(DeviceEvent& event, cudaStream_t stream) {
  const CurrentDevice current(event.device);
  check_not_captured(stream, "recording an event", event.device);
  check(cudaEventRecord(event.event, stream), "cudaEventRecord", event.device);
  event.is_recorded = true;
}

bool reached(const DeviceEvent& event) {
  if (!event.is_recorded) return true;
  const CurrentDevice current(event.device);
  const OutsideCaptures outside;
  const cudaError_t error = cudaEventQuery(event.event);
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(error, "cudaEventQuery", event.device);
  return true;
}

std::shared_ptr<DeviceEvent> EventPool::take(bool timed) {
  std::unique_ptr<DeviceEvent> event;
  {
    MutexLock lock(mutex_);
    auto& idle = idle_[timed ? 1 : 0];
    if (!idle.empty()) {
      event = std::move(idle.back());
      idle.pop_back();
    }
  }
  if (event == nullptr) {
    event = std::make_unique<DeviceEvent>(DeviceEvent{nullptr, device_, timed});
    const CurrentDevice current(device_);
    check(cudaEventCreateWithFlags(&event->event, timed ? cudaEventDefault : cudaEventDisableTiming), "cudaEventCreate",
          device_);
  }
  event->is_recorded = false;
  return {event.release(), [self = shared_from_this()](DeviceEvent* own) {
            MutexLock lock(self->mutex_);
            self->idle_[own->timed ? 1 : 0].emplace_back(own);
          }};
}

}  // namespace lockstep::cuda
