// SPDX-License-Identifier: Apache-2.0
// The number of threads that one operation of this process may use.
//
// init_process_group sets it after it knows how many ranks share the cores; kernels read it. Any thread may call both.
#pragma once

#include <optional>

#include "lockstep/base/api.h"
#include "lockstep/base/environment.h"

namespace lockstep {

// Sets the number of threads, at least 1. Throws InvalidArgument for less.
LOCKSTEP_API void set_intra_op_threads(int threads);
// The value of OMP_NUM_THREADS; for "4,2" the first number, which is the outer level's. nullopt if it is unset, or not
// a number above 0: OpenMP ignores such a value too.
LOCKSTEP_API std::optional<int> threads_by_variable(const Environment& environment);
// The number that was set; otherwise OMP_NUM_THREADS; otherwise allowed_cores().
LOCKSTEP_API int intra_op_threads();

}  // namespace lockstep
