// SPDX-License-Identifier: Apache-2.0
// While one lives, the calling thread may make calls that CUDA forbids beside a capture of the program's, since they
// could wait for the device: a query of an event, an allocation. Those of this room wait for nothing that is captured.
#pragma once

#include <cuda_runtime_api.h>

namespace lockstep::cuda {

class OutsideCaptures {
 public:
  // A broken device refuses this as it does the call behind it, which says so.
  OutsideCaptures() { exchange(); }
  ~OutsideCaptures() { exchange(); }
  OutsideCaptures(const OutsideCaptures&) = delete;
  OutsideCaptures& operator=(const OutsideCaptures&) = delete;

 private:
  void exchange() {
    if (cudaThreadExchangeStreamCaptureMode(&mode_) != cudaSuccess) cudaGetLastError();
  }
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace lockstep::cuda
