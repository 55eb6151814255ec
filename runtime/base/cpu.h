// SPDX-License-Identifier: Apache-2.0
// How much of this machine's processors the process may use.
#pragma once

#include "runtime/base/internal_api.h"

namespace lockstep {

// Cores this process may run on: the affinity mask, cut by the cgroup's CPU quota (v1 and v2), rounded up; at least 1.
LOCKSTEP_INTERNAL_API int allowed_cores();

}  // namespace lockstep
