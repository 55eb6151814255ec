// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/unit/tensor/cuda/both.h"

namespace lockstep::testing {

void order_threads_by(std::uint64_t seed) { fake_cuda::order_threads_by(seed); }

}  // namespace lockstep::testing
