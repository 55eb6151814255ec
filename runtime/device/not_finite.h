// SPDX-License-Identifier: Apache-2.0
// Whether the numbers of a buffer are finite: the first one that is not, as a device looks for it
// (DeviceRuntime::first_not_finite), on the CPU and as the pattern for kernels elsewhere; and what is known while the
// CPU reads the numbers for another purpose.
#pragma once

#include <cstdint>

#include "lockstep/device/device_runtime.h"
#include "runtime/base/internal_api.h"

namespace lockstep {

// kAllFinite, or 2 i if element i is the first that is not finite and NaN, 2 i + 1 if it is infinite. Integers are
// finite. Reads memory once, as fast as it comes.
LOCKSTEP_INTERNAL_API std::int64_t first_not_finite_on_host(const void* data, std::int64_t count, DType dtype);

// Writes `factor`, rounded to `dtype`, times each of the `count` numbers at `from` to `to`, which may be `from`.
// Returns whether each product is finite. `dtype` is f32 or f64.
LOCKSTEP_INTERNAL_API bool write_product(void* to, const void* from, std::int64_t count, DType dtype, double factor);

// The largest magnitude of `count` numbers, or 0 of none; infinite or NaN if one of them is. `dtype` is f32 or f64.
LOCKSTEP_INTERNAL_API double largest_magnitude(const void* data, std::int64_t count, DType dtype);

}  // namespace lockstep
