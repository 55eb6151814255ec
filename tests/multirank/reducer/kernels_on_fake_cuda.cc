// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/error.h"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/multirank/reducer/gradients.h"

namespace lockstep::testing {

void enqueue(StreamView stream, Kernel kernel) {
  if (kernel.bytes == 0) return;  // CUDA refuses a kernel of no threads
  const fake_cuda::Range written{kernel.data, kernel.bytes};
  std::vector<fake_cuda::Range> reads{written};
  if (kernel.source != nullptr) reads.push_back({kernel.source, kernel.bytes});
  const auto run = [data = fake_cuda::host_address(kernel.data),
                    source = kernel.source == nullptr ? nullptr : fake_cuda::host_address(kernel.source),
                    body = std::move(kernel.body)] { body(data, source); };
  const auto handle = static_cast<cudaStream_t>(stream.handle);
  if (fake_cuda::enqueue(handle, kernel.name, run, reads, {written}) != cudaSuccess) {
    throw DeviceError("a launch of a test failed");
  }
}

}  // namespace lockstep::testing
