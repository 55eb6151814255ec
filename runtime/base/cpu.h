// SPDX-License-Identifier: Apache-2.0
// How much of this machine's processors the process may use.
#pragma once

#include "runtime/base/internal_api.h"

namespace lockstep {

// Cores this process may run on: the affinity mask, cut by the cgroup's CPU quota (v1 and v2), rounded up; at least 1.
LOCKSTEP_INTERNAL_API int allowed_cores();

// Undoes what an OpenMP runtime has done to the calling thread before main(): with OMP_PROC_BIND, OMP_PLACES or
// GOMP_CPU_AFFINITY it binds the thread to the first of its places, and each thread and process that is started later
// inherits that. The thread may run in all places again, which lie within the processors that the process was given, or
// that GOMP_CPU_AFFINITY names. Returns their number of processors; 0: nothing was undone.
int leave_openmp_place();

}  // namespace lockstep
