// SPDX-License-Identifier: Apache-2.0
// How the kernels' hot loops are compiled.
#pragma once

#include "runtime/base/clones.h"

#define LOCKSTEP_CLONES LOCKSTEP_CLONES_FOR("arch=x86-64-v4", "arch=x86-64-v3")
#define LOCKSTEP_INLINE inline __attribute__((always_inline))
