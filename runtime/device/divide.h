// SPDX-License-Identifier: Apache-2.0
// Quotients as a device takes them (DeviceRuntime::divide): on the CPU, and as the pattern for kernels elsewhere.
#pragma once

#include <cstdint>

#include "lockstep/device/device_runtime.h"
#include "runtime/base/internal_api.h"

namespace lockstep {

// Every element times `factor` over `divisor`. Floats are multiplied and divided in float32 or wider, then rounded to
// nearest even; integers are divided in 64 bits, towards zero.
LOCKSTEP_INTERNAL_API void divide_on_host(void* data, std::int64_t count, DType dtype, std::int64_t divisor,
                                          OverZero over_zero = OverZero::stays, double factor = 1);

}  // namespace lockstep
