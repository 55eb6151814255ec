// SPDX-License-Identifier: Apache-2.0
// Defines functions that set and return the number of threads that one operation, such as matmul, may use in
// this process.
//
// After init_process_group() has found out how many ranks share the host's cores, it calls set_intra_op_threads();
// kernels on the CPU call intra_op_threads(). Any thread may call the functions of this header.
#pragma once

#include <optional>

#include "lockstep/base/api.h"
#include "lockstep/base/environment.h"

namespace lockstep {

// Sets the number of threads. Throws InvalidArgument for a number below 1.
LOCKSTEP_API void set_intra_op_threads(int threads);
// Returns the value of OMP_NUM_THREADS; if the value is a list such as "4,2", returns the first number, which is for
// the outermost parallel region. Returns nullopt if OMP_NUM_THREADS is unset, or if the value of OMP_NUM_THREADS is not
// a number above 0, because OpenMP ignores such values.
LOCKSTEP_API std::optional<int> threads_by_variable(const Environment& environment);
// Returns the number that set_intra_op_threads() set. If set_intra_op_threads() was never called, returns the result of
// threads_by_variable(), or of allowed_cores() if threads_by_variable() returns nullopt.
LOCKSTEP_API int intra_op_threads();

}  // namespace lockstep
