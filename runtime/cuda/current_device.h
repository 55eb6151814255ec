// Makes a device the calling thread's current one, and the former one again at the end.
#pragma once

#include <cuda_runtime_api.h>

#include "runtime/cuda/check.h"

namespace lockstep::cuda {

class CurrentDevice {
 public:
  explicit CurrentDevice(DeviceId device) : device_(device) {
    check(cudaGetDevice(&former_), "cudaGetDevice", device);
    if (former_ != device.index) check(cudaSetDevice(device.index), "cudaSetDevice", device);
  }
  ~CurrentDevice() {
    if (former_ != device_.index) check_quietly(cudaSetDevice(former_), "cudaSetDevice back", device_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  const DeviceId device_;
  int former_ = 0;
};

}  // namespace lockstep::cuda
