// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/unit/tensor/cuda/both.h"

namespace lockstep::testing {
namespace {

// So few that small arrays are more than its blocks take at once: each then has several turns.
const int set = ::setenv("LOCKSTEP_FAKE_MULTIPROCESSORS", "1", 0);

}  // namespace

void order_threads_by(std::uint64_t seed) { fake_cuda::order_threads_by(seed); }

}  // namespace lockstep::testing
