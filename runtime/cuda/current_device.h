// SPDX-License-Identifier: Apache-2.0
// Makes a device the calling thread's current one, and the former one again at the end.
//
// A thread that has no context yet keeps the device: its "current" one is only a number, 0, and to set it back would
// bring up a context there, hundreds of megabytes on GPU 0 for each rank of the host.
#pragma once

#include "lockstep/device/device.h"

namespace lockstep::cuda {

class CurrentDevice {
 public:
  // Throws DeviceError.
  explicit CurrentDevice(DeviceId device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int former_ = -1;  // to be set again
};

}  // namespace lockstep::cuda
