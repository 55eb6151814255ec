// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/tensor/cuda/both.h"

namespace lockstep::testing {

// A GPU has its own.
void order_threads_by(std::uint64_t) {}

}  // namespace lockstep::testing
