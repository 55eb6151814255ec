// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/gpu/failing_kernel.h"

void lockstep::testing::fail_in_a_kernel(StreamView stream) {
  fake_cuda::inject("operation=710@1");
  static_cast<void>(fake_cuda::enqueue(static_cast<cudaStream_t>(stream.handle), "failing_kernel", [] {}, {}, {}));
}
