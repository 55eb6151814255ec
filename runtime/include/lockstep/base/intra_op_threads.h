// SPDX-License-Identifier: Apache-2.0
// Sets and returns the number of threads that one operation of this process may use.
//
// init_process_group sets the number after it knows how many ranks share the cores; kernels read the number. Any thread
// may call the functions of this header.
#pragma once

#include <optional>

#include "lockstep/base/api.h"
#include "lockstep/base/environment.h"

namespace lockstep {

// Sets the number of threads. Throws InvalidArgument for a number below 1.
LOCKSTEP_API void set_intra_op_threads(int threads);
// Returns the value of OMP_NUM_THREADS; for "4,2" returns the first number, which is the outer level's. Returns nullopt
// if the variable is unset or its value is not a number above 0, because OpenMP ignores such a value too.
LOCKSTEP_API std::optional<int> threads_by_variable(const Environment& environment);
// Returns the number that set_intra_op_threads() set. Without a set number, returns threads_by_variable(), or, if that
// is nullopt, allowed_cores().
LOCKSTEP_API int intra_op_threads();

}  // namespace lockstep
