// SPDX-License-Identifier: Apache-2.0
// The streams of one device. One that goes back is kept, and given out again once it is idle: its work continues when
// its owner has gone, and memory that was allocated in it is freed in it.
//
// Threads: any.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <vector>

#include "lockstep/device/stream.h"
#include "runtime/base/mutex.h"

namespace lockstep::cuda {

class StreamPool : public std::enable_shared_from_this<StreamPool> {
 public:
  explicit StreamPool(DeviceId device) : device_(device) {}

  // get() is the cudaStream_t.
  std::shared_ptr<void> create(Stream::Priority priority) EXCLUDES(mutex_);

 private:
  void put(cudaStream_t stream, Stream::Priority priority) noexcept EXCLUDES(mutex_);

  const DeviceId device_;
  Mutex mutex_;
  std::map<Stream::Priority, std::vector<cudaStream_t>> kept_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::cuda
