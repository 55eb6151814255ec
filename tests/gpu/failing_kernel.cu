// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/failing_kernel.h"

#include <cuda_runtime_api.h>

#include <cassert>

namespace {

__global__ void failing_kernel(int label) { assert(label < 1000); }

}  // namespace

void lockstep::testing::fail_in_a_kernel(StreamView stream) {
  cudaSetDevice(stream.device.index);
  failing_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream.handle)>>>(5000);
}
