// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/stream_pool.h"

#include "runtime/cuda/check.h"
#include "runtime/cuda/current_device.h"
#include "runtime/cuda/outside_captures.h"

namespace lockstep::cuda {

std::shared_ptr<void> StreamPool::create(Stream::Priority priority) {
  const CurrentDevice current(device_);
  const OutsideCaptures outside;
  cudaStream_t stream = nullptr;
  {
    MutexLock lock(mutex_);
    auto& kept = kept_[priority];
    for (auto at = kept.begin(); at != kept.end(); ++at) {
      // One that hangs is never given out again.
      if (!is_idle(*at, device_)) continue;
      stream = *at;
      kept.erase(at);
      break;
    }
  }
  if (stream == nullptr) {
    int least = 0;
    int greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange", device_);
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                       priority == Stream::Priority::greatest ? greatest : least),
          "cudaStreamCreate", device_);
  }
  return {stream, [self = shared_from_this(), priority](void* handle) {
            self->put(static_cast<cudaStream_t>(handle), priority);
          }};
}

void StreamPool::put(cudaStream_t stream, Stream::Priority priority) noexcept {
  MutexLock lock(mutex_);
  kept_[priority].push_back(stream);
}

}  // namespace lockstep::cuda
