// SPDX-License-Identifier: Apache-2.0
// The first number of a buffer that is not finite, as a device looks for it (DeviceRuntime::first_not_finite): on the
// CPU, and as the pattern for kernels elsewhere.
#pragma once

#include <cstdint>

#include "lockstep/device/device_runtime.h"
#include "runtime/base/internal_api.h"

namespace lockstep {

// kAllFinite, or 2 i if element i is the first that is not finite and NaN, 2 i + 1 if it is infinite. Integers are
// finite. Reads memory once, as fast as it comes.
LOCKSTEP_INTERNAL_API std::int64_t first_not_finite_on_host(const void* data, std::int64_t count, DType dtype);

}  // namespace lockstep
